"""The ledger's outbox: rows that are still to be sent to JetStream, when they are due, and whether they are taken."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, insert, select, update

from .sql.prepared import Inserting, deleting, updating
from .sql.transaction import Transaction, one_by_one
from .tables import outbox as _outbox
from .tables import runs as _runs

DISPATCH = "dispatch"
WITHDRAW = "withdraw"
CANCEL = "cancel"

INSERT_OUTBOX = Inserting(_outbox, ("kind", "run_id", "dispatch", "due_at"))
_DELETE_SENT = deleting(_outbox, ("run_id", "dispatch", "kind"))
_NOTE_SENT = updating(_runs, ("job_sequence",), keys=("run_id", "dispatch"))


@dataclass(frozen=True, slots=True)
class Sent:
    run_id: str
    dispatch: int
    job_sequence: int


@dataclass(frozen=True, slots=True)
class TakeDue:
    now: float
    until: float
    limit: int


@dataclass(frozen=True, slots=True)
class PutOff:
    kind: str
    run_id: str
    dispatch: int
    due_at: float


@dataclass(frozen=True, slots=True)
class QueueAgain:
    run_id: str
    expected_dispatch: int
    due_at: float
    now: float


@one_by_one
def take_due(transaction: Transaction, item: TakeDue) -> list[int]:
    """Take outbox rows that are due. No other process takes them before `until`, when unsent ones are due again."""
    due = (
        select(_outbox.c.id)
        .where(_outbox.c.due_at <= item.now)
        .order_by(_outbox.c.due_at)
        .limit(item.limit)
        .with_for_update(skip_locked=True)
    )
    # In two statements: in one, PostgreSQL may join the outbox with itself row by row.
    ids = sorted(transaction.execute(due).scalars())
    transaction.execute(
        update(_outbox)
        .where(_outbox.c.id.in_(ids))
        .values(due_at=item.until, due_since=func.coalesce(_outbox.c.due_since, _outbox.c.due_at))
    )
    return ids


def mark_sent(transaction: Transaction, sent: Sequence[Sent]) -> Sequence[None]:
    """Record that dispatches have reached JetStream, and delete their outbox rows."""
    sent = sorted(sent, key=lambda s: s.run_id)
    transaction.write(_DELETE_SENT, [(s.run_id, s.dispatch, DISPATCH) for s in sent])
    transaction.write(_NOTE_SENT, [(s.job_sequence, s.run_id, s.dispatch) for s in sent])
    return [None] * len(sent)


@one_by_one
def put_off(transaction: Transaction, item: PutOff) -> None:
    """Change when a row is due; from now on it counts as taken."""
    same = (_outbox.c.run_id == item.run_id, _outbox.c.kind == item.kind, _outbox.c.dispatch == item.dispatch)
    transaction.execute(
        update(_outbox)
        .where(*same)
        .values(due_at=item.due_at, due_since=func.coalesce(_outbox.c.due_since, _outbox.c.due_at))
    )


def clear_withdrawn(transaction: Transaction, run_ids: Sequence[str]) -> Sequence[None]:
    """Delete the outbox rows of withdrawn runs, whose snapshots were removed from KV."""
    transaction.execute(delete(_outbox).where(_outbox.c.run_id.in_(run_ids), _outbox.c.kind == WITHDRAW))
    return [None] * len(run_ids)


def clear_cancelled(transaction: Transaction, run_ids: Sequence[str]) -> Sequence[None]:
    """Delete the outbox rows of requests to cancel, which KV has now."""
    transaction.execute(delete(_outbox).where(_outbox.c.run_id.in_(run_ids), _outbox.c.kind == CANCEL))
    return [None] * len(run_ids)


@one_by_one
def make_due_now(transaction: Transaction, now: float) -> None:
    """Make rows due now unless their run is scheduled: the process that was to send them has ended."""
    scheduled = select(_runs.c.run_id).where(_runs.c.run_id == _outbox.c.run_id, _runs.c.not_before.is_not(None))
    transaction.execute(update(_outbox).where(_outbox.c.due_at > now, ~scheduled.exists()).values(due_at=now))


@one_by_one
def requeue(transaction: Transaction, item: QueueAgain) -> bool:
    """Queue an unfinished run again; False if another process did so already, or the run has ended."""
    same = (_runs.c.run_id == item.run_id, _runs.c.dispatch == item.expected_dispatch, _runs.c.finished_at.is_(None))
    if transaction.execute(select(_runs.c.run_id).where(*same).with_for_update()).first() is None:
        return False
    queue_again(transaction, item.run_id, due_at=item.due_at, now=item.now)
    return True


def queue_again(transaction: Transaction, run_id: str, *, due_at: float, now: float, **changes: Any) -> None:
    """Add a new dispatch of the run, which the relay sends when it is due; older ones are not sent any more."""
    dispatch: int = transaction.execute(
        update(_runs)
        .where(_runs.c.run_id == run_id)
        .values(dispatch=_runs.c.dispatch + 1, job_sequence=None, checked_at=now, **changes)
        .returning(_runs.c.dispatch)
    ).scalar_one()
    transaction.execute(delete(_outbox).where(_outbox.c.run_id == run_id, _outbox.c.kind == DISPATCH))
    transaction.execute(insert(_outbox).values(kind=DISPATCH, run_id=run_id, dispatch=dispatch, due_at=due_at))

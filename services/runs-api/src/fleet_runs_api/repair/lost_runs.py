"""SQL of the sweeper: queues runs again that JetStream has lost, in batches for the group commit."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, update

from ..fold.history import Decided, DecisionKind, note_decisions
from ..ledger.documents import KEEP_SNAPSHOT, waiting_snapshot_of
from ..ledger.outbox import queue_again
from ..ledger.reads import run_with_documents
from ..ledger.sql.prepared import updating
from ..ledger.sql.transaction import Transaction, one_by_one
from ..ledger.tables import runs as _runs

_NOTE_CHECKED = updating(_runs, ("checked_at",), keys=("run_id",))


@dataclass(frozen=True, slots=True)
class Redispatch:
    """A request to queue a run again. `forgotten`: its snapshot is lost, too, so revisions start again."""

    run_id: str
    expected_dispatch: int
    forgotten: bool
    now: float
    reason: str
    why: str = "JetStream had lost the run"
    # How often workers may have claimed the run since the last snapshot that the ledger has.
    unheard_attempts: int = 0


@one_by_one
def redispatch(transaction: Transaction, item: Redispatch) -> bool:
    """Queue a run again that JetStream has lost. False: another process did so already, or the run has ended."""
    same = (_runs.c.run_id == item.run_id, _runs.c.dispatch == item.expected_dispatch, _runs.c.finished_at.is_(None))
    found = transaction.execute(select(_runs.c.attempt).where(*same).with_for_update()).first()
    if found is None:
        return False
    anew = {"revision": 0} if item.forgotten else {}
    queue_again(transaction, item.run_id, due_at=item.now, now=item.now, **anew)
    if item.forgotten and (row := transaction.first(run_with_documents(item.run_id))) is not None:
        waiting = waiting_snapshot_of(row).skip_attempts(item.unheard_attempts)
        transaction.write(KEEP_SNAPSHOT, [(waiting.encode().decode(), item.run_id)])
    reason = f"{item.why} ({item.reason})"
    note_decisions(transaction, [Decided(item.run_id, item.now, DecisionKind.REDISPATCH, found.attempt, reason)])
    return True


def note_checked(transaction: Transaction, checks: Sequence[tuple[str, float]]) -> Sequence[None]:
    transaction.write(_NOTE_CHECKED, [(at, run_id) for run_id, at in sorted(checks)])
    return [None] * len(checks)


@one_by_one
def forget_revision(transaction: Transaction, known: tuple[str, int]) -> None:
    """Reset the revision of a run, so that the next snapshot is folded in; not if one was folded in since."""
    run_id, revision = known
    same = (_runs.c.run_id == run_id, _runs.c.revision == revision)
    transaction.execute(update(_runs).where(*same).values(revision=0))

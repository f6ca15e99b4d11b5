"""Every write to the ledger. Writes come in batches, one function per kind, for the group commit."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Table, Transaction, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from fleet_contracts.job import Job
from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from .folding import Change, Known, fold
from .tables import counts as _counts
from .tables import documents as _documents
from .tables import outbox as _outbox
from .tables import runs as _runs

# What each open transaction has counted; a rolled back one takes its counts with it.
_counted: WeakKeyDictionary[Transaction, Counter[tuple[str, str]]] = WeakKeyDictionary()

DISPATCH = "dispatch"
WITHDRAW = "withdraw"

_DELETE_SENT = delete(_outbox).where(
    _outbox.c.run_id == bindparam("b_run_id"),
    _outbox.c.dispatch == bindparam("b_dispatch"),
    _outbox.c.kind == DISPATCH,
)
_NOTE_SENT = (
    update(_runs)
    .where(_runs.c.run_id == bindparam("b_run_id"), _runs.c.dispatch == bindparam("b_dispatch"))
    .values(job_sequence=bindparam("b_sequence"))
)
_APPLY_CHANGE = (
    update(_runs)
    .where(_runs.c.run_id == bindparam("b_run_id"))
    .values({_runs.c[name]: bindparam(f"b_{name}") for name in Change.__dataclass_fields__})
)
_KEEP_SNAPSHOT = (
    update(_documents).where(_documents.c.run_id == bindparam("b_run_id")).values(snapshot=bindparam("b_snapshot"))
)
_POSTPONE = update(_outbox).where(_outbox.c.id == bindparam("b_id")).values(due_at=bindparam("b_due_at"))


def _adding_counts(dialect_insert: Callable[[Table], Any]) -> Any:
    statement = dialect_insert(_counts)
    return statement.on_conflict_do_update(
        index_elements=["tenant_id", "status"], set_={"total": _counts.c.total + statement.excluded.total}
    )


# Made once: building such a statement costs more than executing it.
_ADD_COUNTS = {"sqlite": _adding_counts(sqlite.insert), "postgresql": _adding_counts(postgresql.insert)}
_NOTE_CHECKED = (
    update(_runs).where(_runs.c.run_id == bindparam("b_run_id")).values(checked_at=bindparam("b_checked_at"))
)


def _change_row(run_id: str, change: Change) -> dict[str, Any]:
    return {"b_run_id": run_id, **{f"b_{name}": getattr(change, name) for name in Change.__dataclass_fields__}}


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to accept. `retry_at` is when the relay may send it if the submitting process does not."""

    job: Job
    job_text: str
    tags_text: str
    retry_at: float


@dataclass(frozen=True, slots=True)
class Sent:
    run_id: str
    dispatch: int
    job_sequence: int


@dataclass(frozen=True, slots=True)
class Withdrawal:
    run_id: str
    now: float


@dataclass(frozen=True, slots=True)
class Observation:
    """A snapshot as it was seen in KV."""

    snapshot: RunSnapshot
    revision: int
    text: str


@dataclass(frozen=True, slots=True)
class Redispatch:
    """Put a run on the queue again. `forgotten`: its snapshot is gone too, so revisions begin anew."""

    run_id: str
    expected_dispatch: int
    forgotten: bool
    now: float


def accept(connection: Connection, new: Sequence[NewRun]) -> Sequence[None]:
    """Accepting a run: its row, its job, its place in the outbox, and the count, in one transaction."""
    connection.execute(
        insert(_runs),
        [
            {
                "run_id": run.job.run_id,
                "tenant_id": run.job.tenant_id or ANONYMOUS_TENANT,
                "api_key_id": run.job.api_key_id,
                "flow_name": run.job.flow_name,
                "tag": run.job.tag,
                "tags": run.tags_text,
                "status": RunStatus.PENDING.value,
                "attempt": 0,
                "workflow_yaml_sha256": run.job.workflow_yaml_sha256,
                "submitted_at": run.job.submitted_at,
                "updated_at": run.job.submitted_at,
                "heartbeat_at": run.job.submitted_at,
                "revision": 0,
                "dispatch": 1,
                "checked_at": run.job.submitted_at,
            }
            for run in new
        ],
    )
    connection.execute(insert(_documents), [{"run_id": r.job.run_id, "job": r.job_text} for r in new])
    connection.execute(
        insert(_outbox),
        [{"kind": DISPATCH, "run_id": r.job.run_id, "dispatch": 1, "due_at": r.retry_at} for r in new],
    )
    _count(connection, ((run.job.tenant_id or ANONYMOUS_TENANT, RunStatus.PENDING, 1) for run in new))
    return [None] * len(new)


def mark_sent(connection: Connection, sent: Sequence[Sent]) -> Sequence[None]:
    """The dispatch has reached JetStream: nothing is left to send."""
    rows = [{"b_run_id": s.run_id, "b_dispatch": s.dispatch, "b_sequence": s.job_sequence} for s in sent]
    connection.execute(_DELETE_SENT, rows)
    connection.execute(_NOTE_SENT, rows)
    return [None] * len(sent)


def withdraw(connection: Connection, withdrawals: Sequence[Withdrawal]) -> Sequence[bool]:
    """Take back runs that could not be sent. False: a worker has it already, so it was sent after all.

    What may have reached JetStream is removed by the relay as soon as it can be.
    """
    results = []
    for withdrawal in withdrawals:
        gone = connection.execute(
            delete(_runs)
            .where(_runs.c.run_id == withdrawal.run_id, _runs.c.status == RunStatus.PENDING, _runs.c.attempt == 0)
            .returning(_runs.c.tenant_id)
        ).first()
        results.append(gone is not None)
        if gone is None:
            continue
        connection.execute(delete(_documents).where(_documents.c.run_id == withdrawal.run_id))
        connection.execute(delete(_outbox).where(_outbox.c.run_id == withdrawal.run_id))
        connection.execute(
            insert(_outbox).values(kind=WITHDRAW, run_id=withdrawal.run_id, dispatch=1, due_at=withdrawal.now)
        )
        _count(connection, [(gone.tenant_id, RunStatus.PENDING, -1)])
    return results


def record(connection: Connection, observations: Sequence[Observation]) -> Sequence[bool]:
    """Fold snapshots into the ledger; True for those that changed it."""
    wanted = sorted({o.snapshot.run_id for o in observations})
    rows = connection.execute(
        select(_runs.c.run_id, _runs.c.tenant_id, _runs.c.status, _runs.c.attempt, _runs.c.revision)
        .where(_runs.c.run_id.in_(wanted))
        .order_by(_runs.c.run_id)
        .with_for_update()
    )
    known: dict[str, Known] = {}
    tenants: dict[str, str] = {}
    for row in rows:
        known[row.run_id] = Known(RunStatus(row.status), row.attempt, row.revision)
        tenants[row.run_id] = row.tenant_id

    changed: list[bool] = []
    latest: dict[str, tuple[Change, str]] = {}
    moves: list[tuple[str, RunStatus, int]] = []
    for observation in observations:
        run_id = observation.snapshot.run_id
        before = known.get(run_id)
        change = fold(before, observation.snapshot, observation.revision) if before else None
        changed.append(change is not None)
        if before is None or change is None:
            continue
        latest[run_id] = (change, observation.text)
        if change.status is not before.status:
            moves += [(tenants[run_id], before.status, -1), (tenants[run_id], change.status, 1)]
        known[run_id] = Known(change.status, change.attempt, change.revision)
    if latest:
        connection.execute(_APPLY_CHANGE, [_change_row(run_id, c) for run_id, (c, _) in latest.items()])
        connection.execute(
            _KEEP_SNAPSHOT, [{"b_run_id": run_id, "b_snapshot": text} for run_id, (_, text) in latest.items()]
        )
        _count(connection, moves)
    return changed


def redispatch(connection: Connection, wanted: Sequence[Redispatch]) -> Sequence[bool]:
    """Queue runs again that JetStream has lost. False: somebody else did it already, or the run has ended."""
    results = []
    for item in wanted:
        values: dict[str, Any] = {"dispatch": _runs.c.dispatch + 1, "job_sequence": None, "checked_at": item.now}
        if item.forgotten:
            values["revision"] = 0
        done = connection.execute(
            update(_runs)
            .where(
                _runs.c.run_id == item.run_id,
                _runs.c.dispatch == item.expected_dispatch,
                _runs.c.finished_at.is_(None),
            )
            .values(**values)
        )
        results.append(done.rowcount == 1)
        if done.rowcount == 1:
            connection.execute(delete(_outbox).where(_outbox.c.run_id == item.run_id))
            connection.execute(
                insert(_outbox).values(
                    kind=DISPATCH, run_id=item.run_id, dispatch=item.expected_dispatch + 1, due_at=item.now
                )
            )
    return results


def clear_withdrawn(connection: Connection, run_ids: Sequence[str]) -> Sequence[None]:
    """The traces of withdrawn runs are gone from JetStream."""
    connection.execute(delete(_outbox).where(_outbox.c.run_id.in_(run_ids), _outbox.c.kind == WITHDRAW))
    return [None] * len(run_ids)


def postpone(connection: Connection, entries: Sequence[tuple[int, float]]) -> Sequence[None]:
    """Try these outbox rows again at a later time."""
    connection.execute(_POSTPONE, [{"b_id": id_, "b_due_at": due_at} for id_, due_at in entries])
    return [None] * len(entries)


def note_checked(connection: Connection, checks: Sequence[tuple[str, float]]) -> Sequence[None]:
    connection.execute(_NOTE_CHECKED, [{"b_run_id": run_id, "b_checked_at": at} for run_id, at in checks])
    return [None] * len(checks)


def hasten_outbox(connection: Connection, items: Sequence[None]) -> Sequence[None]:
    """Make every row due: the process that meant to send it is gone."""
    connection.execute(update(_outbox).values(due_at=0.0))
    return list(items)


def settle_counts(connection: Connection) -> None:
    """Write what the batches of this transaction have counted; call it last, before the commit.

    The counters are the rows that every process writes: taken last and in a fixed order, they are locked
    for the shortest time, and two processes never wait for each other in a circle.
    """
    transaction = connection.get_transaction()
    assert transaction is not None
    totals = _counted.pop(transaction, Counter())
    rows = [
        {"tenant_id": tenant_id, "status": status, "total": change}
        for (tenant_id, status), change in sorted(totals.items())
        if change
    ]
    if not rows:
        return
    connection.execute(_ADD_COUNTS[connection.dialect.name], rows)


def _count(connection: Connection, changes: Iterable[tuple[str, RunStatus, int]]) -> None:
    transaction = connection.get_transaction()
    assert transaction is not None
    totals = _counted.setdefault(transaction, Counter())
    for tenant_id, status, change in changes:
        totals[tenant_id, status.value] += change

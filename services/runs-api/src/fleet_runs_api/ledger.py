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
from .prepared import Prepared
from .tables import counts as _counts
from .tables import documents as _documents
from .tables import outbox as _outbox
from .tables import runs as _runs

# What each open transaction has counted; a rolled back one takes its counts with it.
_counted: WeakKeyDictionary[Transaction, Counter[tuple[str, str]]] = WeakKeyDictionary()

DISPATCH = "dispatch"
WITHDRAW = "withdraw"

_CHANGE_COLUMNS = tuple(Change.__dataclass_fields__)

_INSERT_RUN = Prepared(
    insert(_runs),
    (
        "run_id", "tenant_id", "api_key_id", "flow_name", "tag", "tags", "status", "attempt", "workflow_yaml_sha256",
        "submitted_at", "updated_at", "heartbeat_at", "revision", "dispatch", "checked_at", "changed_at", "failures",
        "reopened", "kv_released",
    ),
)  # fmt: skip
_INSERT_DOCUMENT = Prepared(insert(_documents), ("run_id", "job"))
_INSERT_OUTBOX = Prepared(insert(_outbox), ("kind", "run_id", "dispatch", "due_at"))
_DELETE_SENT = Prepared(
    delete(_outbox).where(
        _outbox.c.run_id == bindparam("b_run_id"),
        _outbox.c.dispatch == bindparam("b_dispatch"),
        _outbox.c.kind == bindparam("b_kind"),
    ),
    ("b_run_id", "b_dispatch", "b_kind"),
)
_NOTE_SENT = Prepared(
    update(_runs)
    .where(_runs.c.run_id == bindparam("b_run_id"), _runs.c.dispatch == bindparam("b_dispatch"))
    .values(job_sequence=bindparam("b_sequence")),
    ("b_run_id", "b_dispatch", "b_sequence"),
)
_APPLY_CHANGE = Prepared(
    update(_runs)
    .where(_runs.c.run_id == bindparam("b_run_id"))
    .values({_runs.c[name]: bindparam(f"b_{name}") for name in _CHANGE_COLUMNS}),
    ("b_run_id", *(f"b_{name}" for name in _CHANGE_COLUMNS)),
)
_KEEP_SNAPSHOT = Prepared(
    update(_documents).where(_documents.c.run_id == bindparam("b_run_id")).values(snapshot=bindparam("b_snapshot")),
    ("b_run_id", "b_snapshot"),
)
_POSTPONE = Prepared(
    update(_outbox).where(_outbox.c.id == bindparam("b_id")).values(due_at=bindparam("b_due_at")),
    ("b_id", "b_due_at"),
)
_NOTE_CHECKED = Prepared(
    update(_runs).where(_runs.c.run_id == bindparam("b_run_id")).values(checked_at=bindparam("b_checked_at")),
    ("b_run_id", "b_checked_at"),
)


def _adding_counts(dialect_insert: Callable[[Table], Any]) -> Prepared:
    statement = dialect_insert(_counts)
    return Prepared(
        statement.on_conflict_do_update(
            index_elements=["tenant_id", "status"], set_={"total": _counts.c.total + statement.excluded.total}
        ),
        ("tenant_id", "status", "total"),
    )


_ADD_COUNTS = {
    "sqlite": _adding_counts(sqlite.insert),
    "postgresql": _adding_counts(postgresql.insert),
}


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
    pending = RunStatus.PENDING.value
    rows = []
    for run in new:
        job = run.job
        now = job.submitted_at
        rows.append(
            (
                job.run_id, job.tenant_id or ANONYMOUS_TENANT, job.api_key_id, job.flow_name, job.tag, run.tags_text,
                pending, 0, job.workflow_yaml_sha256, now, now, now, 0, 1, now, now, 0, 0, 0,
            )
        )  # fmt: skip
    _INSERT_RUN.execute(connection, rows)
    _INSERT_DOCUMENT.execute(connection, [(run.job.run_id, run.job_text) for run in new])
    _INSERT_OUTBOX.execute(connection, [(DISPATCH, run.job.run_id, 1, run.retry_at) for run in new])
    _count(connection, ((run.job.tenant_id or ANONYMOUS_TENANT, RunStatus.PENDING, 1) for run in new))
    return [None] * len(new)


def mark_sent(connection: Connection, sent: Sequence[Sent]) -> Sequence[None]:
    """The dispatch has reached JetStream: nothing is left to send."""
    _DELETE_SENT.execute(connection, [(s.run_id, s.dispatch, DISPATCH) for s in sent])
    _NOTE_SENT.execute(connection, [(s.run_id, s.dispatch, s.job_sequence) for s in sent])
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


def record(connection: Connection, groups: Sequence[Sequence[Observation]]) -> Sequence[int]:
    """Fold groups of snapshots into the ledger; how many of each group changed it."""
    observations = [observation for group in groups for observation in group]
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

    changed: set[int] = set()
    latest: dict[str, tuple[Change, str]] = {}
    moves: list[tuple[str, RunStatus, int]] = []
    for observation in observations:
        run_id = observation.snapshot.run_id
        before = known.get(run_id)
        change = fold(before, observation.snapshot, observation.revision) if before else None
        if before is None or change is None:
            continue
        changed.add(id(observation))
        latest[run_id] = (change, observation.text)
        if change.status is not before.status:
            moves += [(tenants[run_id], before.status, -1), (tenants[run_id], change.status, 1)]
        known[run_id] = Known(change.status, change.attempt, change.revision)
    if latest:
        _APPLY_CHANGE.execute(connection, [_change_row(run_id, c) for run_id, (c, _) in latest.items()])
        _KEEP_SNAPSHOT.execute(connection, [(run_id, text) for run_id, (_, text) in latest.items()])
        _count(connection, moves)
    return [sum(id(observation) in changed for observation in group) for group in groups]


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
    _POSTPONE.execute(connection, entries)
    return [None] * len(entries)


def note_checked(connection: Connection, checks: Sequence[tuple[str, float]]) -> Sequence[None]:
    _NOTE_CHECKED.execute(connection, checks)
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
    rows = [(tenant_id, status, change) for (tenant_id, status), change in sorted(totals.items()) if change]
    _ADD_COUNTS[connection.dialect.name].execute(connection, rows)


def _count(connection: Connection, changes: Iterable[tuple[str, RunStatus, int]]) -> None:
    transaction = connection.get_transaction()
    assert transaction is not None
    totals = _counted.setdefault(transaction, Counter())
    for tenant_id, status, change in changes:
        totals[tenant_id, status.value] += change


def _change_row(run_id: str, change: Change) -> tuple[Any, ...]:
    return (run_id, *(getattr(change, name) for name in _CHANGE_COLUMNS))

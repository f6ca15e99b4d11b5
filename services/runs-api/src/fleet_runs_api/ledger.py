"""Every write to the ledger. Writes come in batches, one function per kind, for the group commit."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from fleet_contracts.job import Job
from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.trace_context import TraceContext

from .counting import Kind, count
from .folding import Change, Known, fold
from .history import Decided, DecisionKind, note_attempts, note_decisions
from .idempotency import Earlier, KeyUse, forget_key, take_key
from .prepared import Deleting, Inserting, Updating
from .second_tries import may_be_committed
from .tables import attempts as _attempts
from .tables import decisions as _decisions
from .tables import documents as _documents
from .tables import idempotency_keys as _keys
from .tables import outbox as _outbox
from .tables import runs as _runs

DISPATCH = "dispatch"
WITHDRAW = "withdraw"

_CHANGE_COLUMNS = (*Change.__dataclass_fields__, "changed_at")

_INSERT_RUN = Inserting(
    _runs,
    (
        "run_id", "tenant_id", "api_key_id", "flow_name", "tag", "tags", "status", "attempt", "workflow_yaml_sha256",
        "submitted_at", "updated_at", "heartbeat_at", "revision", "dispatch", "checked_at", "changed_at", "failures",
        "reopened", "kv_released", "not_before", "deadline_at", "rerun_of",
    ),
)  # fmt: skip
_INSERT_DOCUMENT = Inserting(_documents, ("run_id", "job"))
_INSERT_OUTBOX = Inserting(_outbox, ("kind", "run_id", "dispatch", "due_at"))
_DELETE_SENT = Deleting(_outbox, ("run_id", "dispatch", "kind"))
_NOTE_SENT = Updating(_runs, ("job_sequence",), keys=("run_id", "dispatch"))
_APPLY_CHANGE = Updating(_runs, _CHANGE_COLUMNS, keys=("run_id",))
_KEEP_SNAPSHOT = Updating(_documents, ("snapshot",), keys=("run_id",))
_NOTE_CHECKED = Updating(_runs, ("checked_at",), keys=("run_id",))


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to accept. `send_at` is when the relay may send it if the submitting process does not."""

    job: Job
    job_text: str
    tags_text: str
    send_at: float


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Runs to accept together, all or none. With a key they are accepted once, however often they are sent."""

    runs: Sequence[NewRun]
    key: KeyUse | None = None


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
class Withdrawal:
    run_id: str
    now: float
    key: KeyUse | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """A snapshot as it was seen in KV."""

    snapshot: RunSnapshot
    revision: int
    text: str
    # Where it was written, if that is traced.
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class Redispatch:
    """Put a run on the queue again. `forgotten`: its snapshot is gone too, so revisions begin anew."""

    run_id: str
    expected_dispatch: int
    forgotten: bool
    now: float
    reason: str


@dataclass(frozen=True, slots=True)
class Reopening:
    """Somebody asks for a failed run to be tried once more, at `due_at`."""

    run_id: str
    tenant_id: str
    due_at: float
    now: float
    by: str


@dataclass(frozen=True, slots=True)
class NotReopened:
    """The run is in another state than FAILED; None: there is no such run."""

    status: RunStatus | None


def accept(connection: Connection, acceptances: Sequence[Acceptance]) -> Sequence[Earlier | None]:
    """Accepting runs: their rows, jobs, places in the outbox and counts, in one transaction.

    The result is None, or what was accepted earlier under the same key.
    """
    earlier = [_taken_earlier(connection, wanted) for wanted in acceptances]
    new = [run for wanted, before in zip(acceptances, earlier, strict=True) if before is None for run in wanted.runs]
    if may_be_committed(connection):
        there = _those_of(connection, [run.job.run_id for run in new])
        new = [run for run in new if run.job.run_id not in there]
    pending = RunStatus.PENDING.value
    # Read inside the transaction: whoever follows changes relies on it.
    changed_at = time.time()
    rows = []
    for run in new:
        job = run.job
        now = job.submitted_at
        rows.append(
            (
                job.run_id, _tenant_of(job), job.api_key_id, job.flow_name, job.tag, run.tags_text,
                pending, 0, job.workflow_yaml_sha256, now, now, now, 0, 1, now, changed_at, 0, 0, 0,
                job.not_before, job.deadline_at, job.rerun_of,
            )
        )  # fmt: skip
    _INSERT_RUN.execute(connection, rows)
    _INSERT_DOCUMENT.execute(connection, [(run.job.run_id, run.job_text) for run in new])
    _INSERT_OUTBOX.execute(connection, [(DISPATCH, run.job.run_id, 1, run.send_at) for run in new])
    count(connection, ((Kind(_tenant_of(r.job), r.job.flow_name, r.job.tag), RunStatus.PENDING, 1) for r in new))
    return earlier


def _taken_earlier(connection: Connection, wanted: Acceptance) -> Earlier | None:
    if wanted.key is None or (before := take_key(connection, wanted.key)) is None:
        return None
    # Perhaps it was this very acceptance, whose commit had arrived after all.
    return None if may_be_committed(connection) and before.run_ids == wanted.key.run_ids else before


def _those_of(connection: Connection, run_ids: Sequence[str]) -> set[str]:
    return set(connection.execute(select(_runs.c.run_id).where(_runs.c.run_id.in_(run_ids))).scalars())


def mark_sent(connection: Connection, sent: Sequence[Sent]) -> Sequence[None]:
    """The dispatch has reached JetStream: nothing is left to send."""
    sent = sorted(sent, key=lambda s: s.run_id)
    _DELETE_SENT.execute(connection, [(s.run_id, s.dispatch, DISPATCH) for s in sent])
    _NOTE_SENT.execute(connection, [(s.job_sequence, s.run_id, s.dispatch) for s in sent])
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
            .returning(_runs.c.tenant_id, _runs.c.flow_name, _runs.c.tag)
        ).first()
        # Not there at all: it was withdrawn before, by a commit that nobody had heard of.
        results.append(gone is not None or not _those_of(connection, [withdrawal.run_id]))
        if gone is None:
            continue
        connection.execute(delete(_documents).where(_documents.c.run_id == withdrawal.run_id))
        connection.execute(delete(_outbox).where(_outbox.c.run_id == withdrawal.run_id))
        connection.execute(
            insert(_outbox).values(kind=WITHDRAW, run_id=withdrawal.run_id, dispatch=1, due_at=withdrawal.now)
        )
        if withdrawal.key is not None:
            forget_key(connection, withdrawal.key)
        count(connection, [(Kind(*gone), RunStatus.PENDING, -1)])
    return results


def record(connection: Connection, groups: Sequence[Sequence[Observation]]) -> Sequence[Sequence[Observation]]:
    """Fold groups of snapshots into the ledger, with what follows from them; those of each group that changed it."""
    observations = [observation for group in groups for observation in group]
    wanted = sorted({o.snapshot.run_id for o in observations})
    columns = ("run_id", "tenant_id", "flow_name", "tag", "status", "attempt", "revision", "failures", "reopened")
    rows = connection.execute(
        select(*(_runs.c[name] for name in columns))
        .where(_runs.c.run_id.in_(wanted))
        .order_by(_runs.c.run_id)
        .with_for_update()
    )
    known: dict[str, Known] = {}
    kinds: dict[str, Kind] = {}
    for run_id, tenant_id, flow_name, tag, status, attempt, revision, failures, reopened in rows:
        known[run_id] = Known(RunStatus(status), attempt, revision, failures, reopened)
        kinds[run_id] = Kind(tenant_id, flow_name, tag)

    changed: set[int] = set()
    latest: dict[str, tuple[Change, Observation]] = {}
    moves: list[tuple[Kind, RunStatus, int]] = []
    to_retry: dict[str, float] = {}
    for observation in observations:
        run_id = observation.snapshot.run_id
        before = known.get(run_id)
        change = fold(before, observation.snapshot, observation.revision) if before else None
        if before is None or change is None:
            continue
        changed.add(id(observation))
        latest[run_id] = (change, observation)
        if change.status is not before.status:
            moves += [(kinds[run_id], before.status, -1), (kinds[run_id], change.status, 1)]
        if change.status is RunStatus.PENDING and change.failures > before.failures:
            to_retry[run_id] = change.not_before or change.updated_at
        known[run_id] = Known(change.status, change.attempt, change.revision, change.failures, change.reopened)
    if latest:
        now = time.time()
        _APPLY_CHANGE.execute(connection, [_change_row(run_id, c, now) for run_id, (c, _) in latest.items()])
        _KEEP_SNAPSHOT.execute(connection, [(seen.text, run_id) for run_id, (_, seen) in latest.items()])
        for _, seen in latest.values():
            if seen.snapshot.earlier_attempts:
                note_attempts(connection, seen.snapshot)
        for run_id, due_at in to_retry.items():
            if not known[run_id].status.is_terminal:
                _queue_again(connection, run_id, due_at=due_at, now=now)
        count(connection, moves)
    return [[observation for observation in group if id(observation) in changed] for group in groups]


def redispatch(connection: Connection, wanted: Sequence[Redispatch]) -> Sequence[bool]:
    """Queue runs again that JetStream has lost. False: somebody else did it already, or the run has ended."""
    results = []
    for item in wanted:
        found = connection.execute(
            select(_runs.c.attempt)
            .where(
                _runs.c.run_id == item.run_id,
                _runs.c.dispatch == item.expected_dispatch,
                _runs.c.finished_at.is_(None),
            )
            .with_for_update()
        ).first()
        results.append(found is not None)
        if found is not None:
            anew = {"revision": 0} if item.forgotten else {}
            _queue_again(connection, item.run_id, due_at=item.now, now=item.now, **anew)
            reason = f"JetStream had lost the run ({item.reason})"
            note_decisions(
                connection, [Decided(item.run_id, item.now, DecisionKind.REDISPATCH, found.attempt, reason)]
            )
    return results


def reopen(connection: Connection, wanted: Sequence[Reopening]) -> Sequence[RunSnapshot | NotReopened]:
    """Make failed runs wait again; each one's snapshot as it is to be announced, or why there is none."""
    results: list[RunSnapshot | NotReopened] = [NotReopened(None)] * len(wanted)
    # In a fixed order, so that two processes do not wait for each other in a circle.
    for place in sorted(range(len(wanted)), key=lambda place: wanted[place].run_id):
        results[place] = _reopen(connection, wanted[place])
    return results


def _reopen(connection: Connection, item: Reopening) -> RunSnapshot | NotReopened:
    row = connection.execute(
        select(_runs).where(_runs.c.run_id == item.run_id, _runs.c.tenant_id == item.tenant_id).with_for_update()
    ).first()
    if row is None:
        return NotReopened(None)
    # In a statement of its own: one that waited for the lock sees the new run beside the old document.
    last: str | None = connection.execute(
        select(_documents.c.snapshot).where(_documents.c.run_id == item.run_id)
    ).scalar()
    if row.status != RunStatus.FAILED or last is None:
        return NotReopened(RunStatus(row.status))
    not_before = item.due_at if item.due_at > item.now else None
    snapshot = RunSnapshot.decode(last.encode()).reopen(now=item.now, not_before=not_before)
    # Attempts that a peer's worker did not count were counted here.
    snapshot = snapshot.model_copy(update={"attempt": row.attempt, "reopened": row.reopened + 1})
    note_attempts(connection, snapshot)
    _queue_again(
        connection,
        item.run_id,
        due_at=item.due_at,
        now=item.now,
        status=RunStatus.PENDING.value,
        worker_id=None,
        started_at=None,
        finished_at=None,
        failures=0,
        not_before=not_before,
        deadline_at=None,
        reopened=row.reopened + 1,
        kv_released=0,
        updated_at=item.now,
        changed_at=time.time(),
    )
    _KEEP_SNAPSHOT.execute(connection, [(snapshot.encode().decode(), item.run_id)])
    reason = f"{item.by} asked for another attempt after: {row.error or row.reason or 'no error was told'}"
    note_decisions(connection, [Decided(item.run_id, item.now, DecisionKind.REQUEUE, row.attempt, reason)])
    kind = Kind(row.tenant_id, row.flow_name, row.tag)
    count(connection, [(kind, RunStatus.FAILED, -1), (kind, RunStatus.PENDING, 1)])
    return snapshot


def _queue_again(connection: Connection, run_id: str, *, due_at: float, now: float, **changes: Any) -> None:
    """A new dispatch of the run, sent by the relay when it is due; an older one is not sent any more."""
    dispatch: int = connection.execute(
        update(_runs)
        .where(_runs.c.run_id == run_id)
        .values(dispatch=_runs.c.dispatch + 1, job_sequence=None, checked_at=now, **changes)
        .returning(_runs.c.dispatch)
    ).scalar_one()
    connection.execute(delete(_outbox).where(_outbox.c.run_id == run_id))
    connection.execute(insert(_outbox).values(kind=DISPATCH, run_id=run_id, dispatch=dispatch, due_at=due_at))


def clear_withdrawn(connection: Connection, run_ids: Sequence[str]) -> Sequence[None]:
    """The traces of withdrawn runs are gone from JetStream."""
    connection.execute(delete(_outbox).where(_outbox.c.run_id.in_(run_ids), _outbox.c.kind == WITHDRAW))
    return [None] * len(run_ids)


def take_due(connection: Connection, wanted: Sequence[TakeDue]) -> Sequence[Sequence[int]]:
    """Take outbox rows that are due; nobody else takes them until then, by when they are sent or due again."""
    taken = []
    for item in wanted:
        due = (
            select(_outbox.c.id)
            .where(_outbox.c.due_at <= item.now)
            .order_by(_outbox.c.due_at)
            .limit(item.limit)
            .with_for_update(skip_locked=True)
        )
        rows = connection.execute(
            update(_outbox)
            .where(_outbox.c.id.in_(due))
            .values(due_at=item.until, due_since=func.coalesce(_outbox.c.due_since, _outbox.c.due_at))
            .returning(_outbox.c.id)
        )
        taken.append(sorted(row.id for row in rows))
    return taken


def note_checked(connection: Connection, checks: Sequence[tuple[str, float]]) -> Sequence[None]:
    _NOTE_CHECKED.execute(connection, [(at, run_id) for run_id, at in sorted(checks)])
    return [None] * len(checks)


def forget_revision(connection: Connection, known: Sequence[tuple[str, int]]) -> Sequence[None]:
    """Revisions of these runs have begun anew: whatever is seen next is news, unless something was seen meanwhile."""
    for run_id, revision in known:
        connection.execute(
            update(_runs).where(_runs.c.run_id == run_id, _runs.c.revision == revision).values(revision=0)
        )
    return [None] * len(known)


def mark_released(connection: Connection, groups: Sequence[Sequence[str]]) -> Sequence[None]:
    """KV has let go of these ended runs."""
    run_ids = [run_id for group in groups for run_id in group]
    ended = _runs.c.finished_at.is_not(None)
    connection.execute(update(_runs).where(_runs.c.run_id.in_(run_ids), ended).values(kv_released=1))
    return [None] * len(groups)


def purge(connection: Connection, groups: Sequence[Sequence[str]]) -> Sequence[None]:
    """Forget these ended runs and all that belongs to them."""
    run_ids = sorted({run_id for group in groups for run_id in group})
    gone = connection.execute(
        delete(_runs)
        .where(_runs.c.run_id.in_(run_ids), _runs.c.finished_at.is_not(None))
        .returning(_runs.c.run_id, _runs.c.tenant_id, _runs.c.flow_name, _runs.c.tag, _runs.c.status)
    ).all()
    for table in (_documents, _attempts, _decisions):
        connection.execute(delete(table).where(table.c.run_id.in_([row.run_id for row in gone])))
    count(connection, ((Kind(row.tenant_id, row.flow_name, row.tag), RunStatus(row.status), -1) for row in gone))
    return [None] * len(groups)


def forget_old_keys(connection: Connection, moments: Sequence[float]) -> Sequence[None]:
    """Idempotency keys older than this may be used anew."""
    connection.execute(delete(_keys).where(_keys.c.created_at < max(moments)))
    return [None] * len(moments)


def hasten_outbox(connection: Connection, moments: Sequence[float]) -> Sequence[None]:
    """Make first dispatches due that wait for no time of their own: the process that meant to send them is gone."""
    scheduled = select(_runs.c.run_id).where(_runs.c.run_id == _outbox.c.run_id, _runs.c.not_before.is_not(None))
    now = max(moments)
    connection.execute(update(_outbox).where(_outbox.c.due_at > now, ~scheduled.exists()).values(due_at=now))
    return [None] * len(moments)


def _tenant_of(job: Job) -> str:
    return job.tenant_id or ANONYMOUS_TENANT


def _change_row(run_id: str, change: Change, now: float) -> tuple[Any, ...]:
    return (*(getattr(change, name) for name in Change.__dataclass_fields__), now, run_id)

"""Every write to the ledger but the outbox. Writes come in batches, one function per kind, for the group commit."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from fleet_contracts.job import Job
from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.trace_context import TraceContext

from . import queries
from .counting import Kind, count
from .documents import snapshot_of, waiting_snapshot_of
from .folding import KNOWN_COLUMNS, Change, Known, fold
from .history import Decided, DecisionKind, note_attempts, note_decisions
from .idempotency import Earlier, KeyUse, forget_key, take_key
from .outbox import CANCEL, DISPATCH, WITHDRAW
from .prepared import Inserting, Updating
from .second_tries import may_be_committed
from .tables import attempts as _attempts
from .tables import decisions as _decisions
from .tables import documents as _documents
from .tables import idempotency_keys as _keys
from .tables import outbox as _outbox
from .tables import runs as _runs

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
    # How often a worker may have claimed the run since the ledger last heard of it.
    unheard_attempts: int = 0


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


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Somebody asks for a run to end; the relay tells KV at `carry_at`, unless it was told before."""

    run_id: str
    tenant_id: str
    by: str
    reason: str | None
    now: float
    carry_at: float


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


def withdraw(connection: Connection, withdrawals: Sequence[Withdrawal]) -> Sequence[bool]:
    """Take back runs of which no job was ever sent. False: somebody may have sent it, so it stays accepted.

    The first dispatch is what decides: whoever sends it takes it first, in a transaction of its own. A snapshot
    that may have reached JetStream is removed by the relay as soon as it can be; without a job nobody executes it.
    """
    results = []
    for withdrawal in withdrawals:
        run_id = withdrawal.run_id
        waiting = select(_runs.c.run_id).where(_runs.c.run_id == run_id, _runs.c.status == RunStatus.PENDING)
        untaken = connection.execute(
            delete(_outbox)
            .where(_outbox.c.run_id.in_(waiting), _outbox.c.kind == DISPATCH, _outbox.c.due_since.is_(None))
            .returning(_outbox.c.id)
        ).first()
        # Not there at all: it was withdrawn before, by a commit that nobody had heard of.
        results.append(untaken is not None or not _those_of(connection, [run_id]))
        if untaken is None:
            continue
        gone = connection.execute(
            delete(_runs)
            .where(_runs.c.run_id == run_id)
            .returning(_runs.c.tenant_id, _runs.c.flow_name, _runs.c.tag, _runs.c.status)
        ).one()
        connection.execute(delete(_documents).where(_documents.c.run_id == run_id))
        connection.execute(insert(_outbox).values(kind=WITHDRAW, run_id=run_id, dispatch=1, due_at=withdrawal.now))
        if withdrawal.key is not None:
            forget_key(connection, withdrawal.key)
        count(connection, [(Kind(gone.tenant_id, gone.flow_name, gone.tag), RunStatus(gone.status), -1)])
    return results


def record(connection: Connection, groups: Sequence[Sequence[Observation]]) -> Sequence[Sequence[Observation]]:
    """Fold groups of snapshots into the ledger, with what follows from them; those of each group that changed it."""
    observations = [observation for group in groups for observation in group]
    wanted = sorted({o.snapshot.run_id for o in observations})
    columns = ("run_id", "tenant_id", "flow_name", "tag", *KNOWN_COLUMNS)
    rows = connection.execute(
        select(*(_runs.c[name] for name in columns))
        .where(_runs.c.run_id.in_(wanted))
        .order_by(_runs.c.run_id)
        .with_for_update()
    )
    known: dict[str, Known] = {}
    kinds: dict[str, Kind] = {}
    for row in rows:
        known[row.run_id] = Known.of(row)
        kinds[row.run_id] = Kind(row.tenant_id, row.flow_name, row.tag)

    now = time.time()
    changed: set[int] = set()
    latest: dict[str, tuple[Change, Observation]] = {}
    moves: list[tuple[Kind, RunStatus, int]] = []
    to_retry: dict[str, float] = {}
    for observation in observations:
        run_id = observation.snapshot.run_id
        before = known.get(run_id)
        change = fold(before, observation.snapshot, observation.revision, now=now) if before else None
        if before is None or change is None:
            continue
        changed.add(id(observation))
        latest[run_id] = (change, observation)
        if change.status is not before.status:
            moves += [(kinds[run_id], before.status, -1), (kinds[run_id], change.status, 1)]
        if change.status is RunStatus.PENDING and change.failures > before.failures:
            to_retry[run_id] = change.not_before or now
        known[run_id] = Known.of(change)
    if latest:
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
            if item.forgotten:
                row = connection.execute(queries.run_with_documents(item.run_id)).one()
                waiting = waiting_snapshot_of(row).skip_attempts(item.unheard_attempts)
                _KEEP_SNAPSHOT.execute(connection, [(waiting.encode().decode(), item.run_id)])
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
    document = connection.execute(select(_documents).where(_documents.c.run_id == item.run_id)).one()
    if row.status != RunStatus.FAILED or document.snapshot is None:
        return NotReopened(RunStatus(row.status))
    not_before = item.due_at if item.due_at > item.now else None
    snapshot = snapshot_of(document).reopen(now=item.now, not_before=not_before)
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


def request_cancel(connection: Connection, wanted: Sequence[CancelRequest]) -> Sequence[RunSnapshot | None]:
    """Note that runs are to end; each as the ledger has it from now on, None if there is no such run.

    A run that has ended stays as it is, and of two requests the first one stands.
    """
    results: list[RunSnapshot | None] = [None] * len(wanted)
    for place in sorted(range(len(wanted)), key=lambda place: wanted[place].run_id):
        results[place] = _request_cancel(connection, wanted[place])
    return results


def _request_cancel(connection: Connection, item: CancelRequest) -> RunSnapshot | None:
    own = (_runs.c.run_id == item.run_id, _runs.c.tenant_id == item.tenant_id)
    if connection.execute(select(_runs.c.run_id).where(*own).with_for_update()).first() is None:
        return None
    row = connection.execute(queries.run_with_documents(item.run_id)).one()
    snapshot = snapshot_of(row)
    if (asked := snapshot.request_cancel(by=item.by, now=item.now, reason=item.reason)) is snapshot:
        return snapshot
    changes = {"status": asked.status.value, "updated_at": item.now, "changed_at": time.time()}
    connection.execute(update(_runs).where(_runs.c.run_id == item.run_id).values(changes))
    _KEEP_SNAPSHOT.execute(connection, [(asked.encode().decode(), item.run_id)])
    row_of_outbox = {"kind": CANCEL, "run_id": item.run_id, "dispatch": row.dispatch, "due_at": item.carry_at}
    connection.execute(insert(_outbox).values(row_of_outbox))
    kind = Kind(row.tenant_id, row.flow_name, row.tag)
    count(connection, [(kind, RunStatus(row.status), -1), (kind, asked.status, 1)])
    return asked


def _queue_again(connection: Connection, run_id: str, *, due_at: float, now: float, **changes: Any) -> None:
    """A new dispatch of the run, sent by the relay when it is due; an older one is not sent any more."""
    dispatch: int = connection.execute(
        update(_runs)
        .where(_runs.c.run_id == run_id)
        .values(dispatch=_runs.c.dispatch + 1, job_sequence=None, checked_at=now, **changes)
        .returning(_runs.c.dispatch)
    ).scalar_one()
    connection.execute(delete(_outbox).where(_outbox.c.run_id == run_id, _outbox.c.kind == DISPATCH))
    connection.execute(insert(_outbox).values(kind=DISPATCH, run_id=run_id, dispatch=dispatch, due_at=due_at))


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


def _tenant_of(job: Job) -> str:
    return job.tenant_id or ANONYMOUS_TENANT


def _change_row(run_id: str, change: Change, now: float) -> tuple[Any, ...]:
    return (*(getattr(change, name) for name in Change.__dataclass_fields__), now, run_id)

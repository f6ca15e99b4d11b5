"""SQL that reads the ledger; every query reads one page or one row through an index."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import func, or_, select, union_all

from .outbox import DISPATCH
from .rows import (
    KNOWN_COLUMNS,
    RUN_COLUMNS,
    AttemptRow,
    DecisionView,
    JobPlace,
    Known,
    KnownState,
    OutboxRow,
    OverdueRun,
    Query,
    QueuedRun,
    RunRevision,
    RunRow,
    RunState,
    StatusTotal,
    UncheckedRun,
    beginning,
    run_row,
)
from .tables import FINISHED, FINISHED_IN_KV, HELD, QUEUED, TAKEN, WITH_DEADLINE
from .tables import attempts as _attempts
from .tables import counts as _counts
from .tables import dead_letters as _letters
from .tables import decisions as _decisions
from .tables import documents as _documents
from .tables import idempotency_keys as _keys
from .tables import outbox as _outbox
from .tables import runs as _runs
from .transaction import Transaction

# The names of columns that are not those of the fields.
_COLUMNS_OF_STATE = {"start_time": "started_at", "end_time": "finished_at"}


def totals_by_status() -> Query[StatusTotal]:
    """Runs by status, from the counters: they have a row per tenant and status, however many runs there are."""
    return Query(select(_counts.c.status, func.sum(_counts.c.total)).group_by(_counts.c.status), StatusTotal)


def run_with_documents(run_id: str) -> Query[RunRow]:
    return runs_with_documents([run_id])


def locked_run(transaction: Transaction, run_id: str, *, tenant_id: str) -> RunRow | None:
    """A run of a tenant, locked until the transaction ends."""
    own = select(_runs.c.run_id).where(_runs.c.run_id == run_id, _runs.c.tenant_id == tenant_id)
    if transaction.execute(own.with_for_update()).first() is None:
        return None
    # In a separate statement: a join that waited for the lock would return the new run with the old document.
    return transaction.first(run_with_documents(run_id))


def job_of(run_id: str) -> Query[str]:
    """The accepted job of a run."""
    return Query(select(_documents.c.job).where(_documents.c.run_id == run_id), str)


def outbox_rows(ids: Sequence[int]) -> Query[OutboxRow]:
    """Outbox rows with what is needed to send them, in the order of acceptance."""

    def row(kind: str, run_id: str, dispatch: int, *run: Any) -> OutboxRow:
        return OutboxRow(kind, run_id, dispatch, None if run[0] is None else run_row(*run))

    statement = (
        select(_outbox.c.kind, _outbox.c.run_id, _outbox.c.dispatch, *RUN_COLUMNS)
        .select_from(_outbox)
        .outerjoin(_runs, _runs.c.run_id == _outbox.c.run_id)
        .outerjoin(_documents, _documents.c.run_id == _outbox.c.run_id)
        .where(_outbox.c.id.in_(ids))
        .order_by(_outbox.c.id)
    )
    return Query(statement, row)


def is_unsent(run_id: str) -> Query[bool]:
    """Whether the submit of a run has neither sent its job nor left it to the relay; no row: there is no such run."""
    unsent = (
        select(_outbox.c.id)
        .where(
            _outbox.c.run_id == run_id,
            _outbox.c.kind == DISPATCH,
            _outbox.c.dispatch == 1,
            _outbox.c.due_since.is_(None),
            _runs.c.not_before.is_(None),
        )
        .exists()
    )
    return Query(select(unsent).select_from(_runs).where(_runs.c.run_id == run_id), bool)


def is_key_used(tenant_id: str, key: str) -> Query[bool]:
    """Whether a submit was accepted under the idempotency key."""
    used = select(_keys.c.key).where(_keys.c.tenant_id == tenant_id, _keys.c.key == key).exists()
    return Query(select(used), bool)


def job_place(run_id: str) -> Query[JobPlace]:
    """The queue and the stream sequence of the latest job of a run."""
    return Query(select(_runs.c.tag, _runs.c.job_sequence).where(_runs.c.run_id == run_id), JobPlace)


def next_due() -> Query[float | None]:
    """When the next outbox row is due."""
    return Query(select(func.min(_outbox.c.due_at)), _earliest)


def count_due(now: float, *, most: int) -> Query[int]:
    """The number of outbox rows that are due, including those taken and not sent; counting stops at `most`."""
    taken = select(_outbox.c.id).where(TAKEN)
    untouched = select(_outbox.c.id).where(_outbox.c.due_at <= now, _outbox.c.due_since.is_(None))
    return Query(select(func.count()).select_from(union_all(taken, untouched).limit(most).subquery()), int)


def due_longest() -> Query[float | None]:
    """Since when the oldest outbox row is due, of those that were taken and of all."""
    taken = select(func.min(_outbox.c.due_since)).where(TAKEN).scalar_subquery()
    return Query(select(taken, select(func.min(_outbox.c.due_at)).scalar_subquery()), _earliest)


def oldest_held_change() -> Query[float]:
    """The time of the latest change of the held run that changed longest ago, by the ledger's own clock."""
    return Query(select(_runs.c.changed_at).where(HELD).order_by(_runs.c.changed_at).limit(1), float)


def held_runs(*, limit: int) -> Query[RunRevision]:
    """Runs that a worker holds, those that changed longest ago first."""
    held = select(_runs.c.run_id, _runs.c.revision).where(HELD)
    return Query(held.order_by(_runs.c.changed_at).limit(limit), RunRevision)


def queued_runs(tag: str, now: float, *, limit: int) -> Query[QueuedRun]:
    """Runs of a tag that wait with a job in the queue and are not scheduled for later, in the order of their jobs."""
    statement = (
        select(_runs.c.run_id, _runs.c.job_sequence)
        .where(QUEUED, _runs.c.tag == tag, or_(_runs.c.not_before.is_(None), _runs.c.not_before <= now))
        .order_by(_runs.c.job_sequence)
        .limit(limit)
    )
    return Query(statement, QueuedRun)


def unchecked_runs(before: float, *, limit: int) -> Query[UncheckedRun]:
    """Unfinished runs that were not compared with JetStream since `before` and have no outbox row."""

    def row(run_id: str, dispatch: int, job_sequence: int | None, tag: str, *known: Any) -> UncheckedRun:
        return UncheckedRun(run_id, dispatch, job_sequence, tag, Known(*known))

    sending = select(_outbox.c.run_id).where(_outbox.c.run_id == _runs.c.run_id).exists()
    statement = (
        select(_runs.c.run_id, _runs.c.dispatch, _runs.c.job_sequence, _runs.c.tag, *KNOWN_COLUMNS)
        .where(_runs.c.finished_at.is_(None), _runs.c.checked_at < before, ~sending)
        .order_by(_runs.c.checked_at)
        .limit(limit)
    )
    return Query(statement, row)


def overdue_runs(now: float, *, limit: int) -> Query[OverdueRun]:
    statement = (
        select(_runs.c.run_id, _runs.c.deadline_at)
        .where(WITH_DEADLINE, _runs.c.deadline_at <= now)
        .order_by(_runs.c.deadline_at)
        .limit(limit)
    )
    return Query(statement, OverdueRun)


def finished_runs(before: float, *, in_kv: bool, limit: int) -> Query[str]:
    """Runs that ended before a time, also by the ledger's own clock: a worker's clock cannot be trusted."""
    wanted = [FINISHED_IN_KV] if in_kv else [FINISHED, _runs.c.kv_released == 1]
    statement = (
        select(_runs.c.run_id)
        .where(*wanted, _runs.c.finished_at < before, _runs.c.changed_at < before)
        .order_by(_runs.c.finished_at)
        .limit(limit)
    )
    return Query(statement, str)


def ended_among(run_ids: Sequence[str]) -> Query[RunRevision]:
    """Those of the runs that have ended, with the KV revision of the end."""
    columns = (_runs.c.run_id, _runs.c.revision)
    return Query(select(*columns).where(_runs.c.run_id.in_(run_ids), _runs.c.finished_at.is_not(None)), RunRevision)


def states_of(run_ids: Sequence[str], *, tenant_id: str) -> Query[KnownState]:
    """The states of those of the runs that belong to the tenant."""

    def row(reopened: int, *columns: Any) -> KnownState:
        state = RunState(*columns)
        return KnownState(state._replace(error=beginning(state.error)), reopened)

    columns = [_runs.c[_COLUMNS_OF_STATE.get(name, name)] for name in RunState._fields]
    own = select(_runs.c.reopened, *columns).where(_runs.c.run_id.in_(run_ids), _runs.c.tenant_id == tenant_id)
    return Query(own, row)


def runs_with_documents(run_ids: Sequence[str]) -> Query[RunRow]:
    joined = select(*RUN_COLUMNS).join(_documents, _documents.c.run_id == _runs.c.run_id)
    return Query(joined.where(_runs.c.run_id.in_(run_ids)), run_row)


def attempts_of(run_id: str) -> Query[AttemptRow]:
    columns = [_attempts.c[name] for name in AttemptRow._fields]
    return Query(select(*columns).where(_attempts.c.run_id == run_id).order_by(_attempts.c.attempt), AttemptRow)


def decisions_about(run_id: str, *, limit: int) -> Query[DecisionView]:
    """The latest decisions about a run, the newest first."""
    columns = [_decisions.c[field.name] for field in fields(DecisionView)]
    latest = select(*columns).where(_decisions.c.run_id == run_id).order_by(_decisions.c.id.desc()).limit(limit)
    return Query(latest, DecisionView)


def open_letters_of_all(*, most: int) -> Query[int]:
    """The number of open letters of all tenants, up to `most`. Adding up groups would have no such limit."""
    found = select(_letters.c.state).where(_letters.c.state == "open").limit(most).subquery()
    return Query(select(func.count()).select_from(found), int)


def _earliest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)

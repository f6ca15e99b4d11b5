"""SQL that reads the ledger; every query reads one page or one row through an index."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, func, or_, select, union_all

from .known import KNOWN_COLUMNS
from .outbox import DISPATCH
from .tables import FINISHED, FINISHED_IN_KV, HELD, QUEUED, TAKEN, WITH_DEADLINE
from .tables import attempts as _attempts
from .tables import counts as _counts
from .tables import decisions as _decisions
from .tables import documents as _documents
from .tables import outbox as _outbox
from .tables import runs as _runs


def totals_by_status() -> Select[Any]:
    """Runs by status, from the counters: one row per tenant and status, however many runs there are."""
    return select(_counts.c.status, _counts.c.total)


def run_with_documents(run_id: str) -> Select[Any]:
    return (
        select(_runs, _documents.c.job, _documents.c.snapshot)
        .join(_documents, _documents.c.run_id == _runs.c.run_id)
        .where(_runs.c.run_id == run_id)
    )


def job_of(run_id: str) -> Select[Any]:
    """The accepted job of a run."""
    return select(_documents.c.job).where(_documents.c.run_id == run_id)


def outbox_rows(ids: Sequence[int]) -> Select[Any]:
    """Outbox rows with what is needed to send them, in the order of acceptance."""
    return (
        select(
            _outbox,
            _documents.c.job,
            _documents.c.snapshot,
            _runs.c.attempt,
            _runs.c.status,
            _runs.c.updated_at,
        )
        .outerjoin(_runs, _runs.c.run_id == _outbox.c.run_id)
        .outerjoin(_documents, _documents.c.run_id == _outbox.c.run_id)
        .where(_outbox.c.id.in_(ids))
        .order_by(_outbox.c.id)
    )


def first_dispatch(run_id: str) -> Select[Any]:
    """A row if the run exists; `unsent` if its submit has neither sent the job nor left it to the relay."""
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
    return select(unsent.label("unsent")).select_from(_runs).where(_runs.c.run_id == run_id)


def job_place(run_id: str) -> Select[Any]:
    """The queue and the stream sequence of the latest job of a run."""
    return select(_runs.c.tag, _runs.c.job_sequence).where(_runs.c.run_id == run_id)


def next_due() -> Select[Any]:
    """When the next outbox row is due."""
    return select(func.min(_outbox.c.due_at).label("due_at"))


def count_due(now: float, *, most: int) -> Select[Any]:
    """The number of outbox rows that are due, including those taken and not sent; counting stops at `most`."""
    taken = select(_outbox.c.id).where(TAKEN)
    untouched = select(_outbox.c.id).where(_outbox.c.due_at <= now, _outbox.c.due_since.is_(None))
    return select(func.count()).select_from(union_all(taken, untouched).limit(most).subquery())


def due_longest() -> Select[Any]:
    """Since when the oldest outbox row is due: of those that were taken, and of all; each may be NULL."""
    taken = select(func.min(_outbox.c.due_since)).where(TAKEN).scalar_subquery()
    return select(taken.label("due_since"), select(func.min(_outbox.c.due_at)).scalar_subquery().label("due_at"))


def heard_of_longest_ago() -> Select[Any]:
    """The time of the latest change of the held run that changed longest ago, by the ledger's own clock."""
    return select(_runs.c.changed_at).where(HELD).order_by(_runs.c.changed_at).limit(1)


def held_runs(*, limit: int) -> Select[Any]:
    """Runs that a worker holds, those that changed longest ago first."""
    return select(_runs.c.run_id, _runs.c.revision).where(HELD).order_by(_runs.c.changed_at).limit(limit)


def queued_runs(tag: str, now: float, *, limit: int) -> Select[Any]:
    """Runs of a tag that wait with a job in the queue and are not scheduled for later, in the order of their jobs."""
    return (
        select(_runs.c.run_id, _runs.c.job_sequence)
        .where(QUEUED, _runs.c.tag == tag, or_(_runs.c.not_before.is_(None), _runs.c.not_before <= now))
        .order_by(_runs.c.job_sequence)
        .limit(limit)
    )


def unchecked_runs(before: float, *, limit: int) -> Select[Any]:
    """Unfinished runs that were not compared with JetStream since `before` and have no outbox row."""
    sending = select(_outbox.c.run_id).where(_outbox.c.run_id == _runs.c.run_id).exists()
    return (
        select(*(_runs.c[name] for name in ("run_id", "dispatch", "job_sequence", "tag", *KNOWN_COLUMNS)))
        .where(_runs.c.finished_at.is_(None), _runs.c.checked_at < before, ~sending)
        .order_by(_runs.c.checked_at)
        .limit(limit)
    )


def overdue_runs(now: float, *, limit: int) -> Select[Any]:
    return (
        select(_runs.c.run_id, _runs.c.deadline_at)
        .where(WITH_DEADLINE, _runs.c.deadline_at <= now)
        .order_by(_runs.c.deadline_at)
        .limit(limit)
    )


def finished_runs_in_kv(before: float, *, limit: int) -> Select[Any]:
    """Runs that ended before a time, also by the ledger's own clock: a worker's clock cannot be trusted."""
    return (
        select(_runs.c.run_id)
        .where(FINISHED_IN_KV, _runs.c.finished_at < before, _runs.c.changed_at < before)
        .order_by(_runs.c.finished_at)
        .limit(limit)
    )


def finished_runs_out_of_kv(before: float, *, limit: int) -> Select[Any]:
    return (
        select(_runs.c.run_id)
        .where(FINISHED, _runs.c.finished_at < before, _runs.c.changed_at < before, _runs.c.kv_released == 1)
        .order_by(_runs.c.finished_at)
        .limit(limit)
    )


def ended_among(run_ids: Sequence[str]) -> Select[Any]:
    """Those of the runs that have ended, with the KV revision of the end."""
    columns = (_runs.c.run_id, _runs.c.revision)
    return select(*columns).where(_runs.c.run_id.in_(run_ids), _runs.c.finished_at.is_not(None))


def attempts_of(run_id: str) -> Select[Any]:
    return select(_attempts).where(_attempts.c.run_id == run_id).order_by(_attempts.c.attempt)


def decisions_about(run_id: str, *, limit: int) -> Select[Any]:
    """The latest decisions about a run, the newest first."""
    return select(_decisions).where(_decisions.c.run_id == run_id).order_by(_decisions.c.id.desc()).limit(limit)

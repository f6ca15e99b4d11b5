"""Every read of the ledger: each takes one page or one row through an index."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, select

from fleet_contracts.status import RunStatus

from .tables import HELD
from .tables import counts as _counts
from .tables import documents as _documents
from .tables import outbox as _outbox
from .tables import runs as _runs

_SUMMARY_COLUMNS = tuple(
    _runs.c[name]
    for name in (
        "run_id", "flow_name", "tag", "tags", "status", "attempt", "worker_id", "error", "reason",
        "submitted_at", "updated_at", "heartbeat_at", "started_at", "finished_at", "workflow_yaml_sha256",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunFilter:
    tenant_id: str
    status: RunStatus | None = None
    flow_name: str | None = None
    tag: str | None = None


def page_of_runs(wanted: RunFilter, *, limit: int, with_documents: bool = False) -> Select[Any]:
    """The newest runs first; whatever the filter, an index gives them in this order."""
    columns = _SUMMARY_COLUMNS + ((_documents.c.job, _documents.c.snapshot) if with_documents else ())
    query = select(*columns).where(_runs.c.tenant_id == wanted.tenant_id)
    if with_documents:
        query = query.join(_documents, _documents.c.run_id == _runs.c.run_id)
    if wanted.status is not None:
        query = query.where(_runs.c.status == wanted.status.value)
    if wanted.flow_name is not None:
        query = query.where(_runs.c.flow_name == wanted.flow_name)
    if wanted.tag is not None:
        query = query.where(_runs.c.tag == wanted.tag)
    return query.order_by(_runs.c.seq.desc()).limit(limit)


def totals_by_status() -> Select[Any]:
    """From the counters: as many rows as tenants times statuses, however many runs there are."""
    return select(_counts.c.status, _counts.c.total)


def run_with_documents(run_id: str) -> Select[Any]:
    return (
        select(_runs, _documents.c.job, _documents.c.snapshot)
        .join(_documents, _documents.c.run_id == _runs.c.run_id)
        .where(_runs.c.run_id == run_id)
    )


def due_outbox(now: float, *, limit: int) -> Select[Any]:
    return (
        select(_outbox, _documents.c.job, _runs.c.attempt, _runs.c.status)
        .outerjoin(_runs, _runs.c.run_id == _outbox.c.run_id)
        .outerjoin(_documents, _documents.c.run_id == _outbox.c.run_id)
        .where(_outbox.c.due_at <= now)
        .order_by(_outbox.c.due_at)
        .limit(limit)
    )


def held_runs(*, limit: int) -> Select[Any]:
    """Runs that some worker holds, those heard of longest ago first."""
    return select(_runs.c.run_id, _runs.c.revision).where(HELD).order_by(_runs.c.heartbeat_at).limit(limit)


def unchecked_runs(before: float, *, limit: int) -> Select[Any]:
    """Unfinished runs that nobody has compared with JetStream since `before`, and that wait for no sending."""
    sending = select(_outbox.c.run_id).where(_outbox.c.run_id == _runs.c.run_id).exists()
    return (
        select(_runs.c.run_id, _runs.c.dispatch, _runs.c.job_sequence, _runs.c.tag)
        .where(_runs.c.finished_at.is_(None), _runs.c.checked_at < before, ~sending)
        .order_by(_runs.c.checked_at)
        .limit(limit)
    )

"""Repairs single runs: independently of each other, and each in the trace of its run."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from fleet_contracts import spans
from fleet_contracts.job import Job
from fleet_kit.errors import FleetError
from fleet_kit.telemetry.tracing import UNTRACED, Span, span

from ..ledger import reads
from ..ledger.rows import OverdueRun, RunRevision, UncheckedRun
from ..ledger.sql.database import Database

logger = logging.getLogger(__name__)

T = TypeVar("T", OverdueRun, RunRevision, UncheckedRun)


async def repairing(database: Database, run_id: str, reason: str) -> Span:
    """A span for a repair, in the trace that the run's job names: the last holder and its spans may be lost.

    It is made even if spans are not recorded: log lines and dead letters carry the trace context.
    """
    rows = await database.fetch(reads.run_with_documents(run_id))
    if not rows or (job := Job.decode(rows[0].job.encode())).trace_context is None:
        return UNTRACED
    about = {
        **spans.about_run(job),
        spans.ATTEMPT: rows[0].known.attempt,
        spans.WORKER_ID: rows[0].worker_id,
        spans.REASON: reason,
    }
    return span(spans.RUN_REPAIR, about, parent=job.trace_context)


async def in_trace_of(database: Database, run_id: str) -> Span:
    """The trace of a run of which only the id is known, for a log line about it."""
    jobs = await database.fetch(reads.job_of(run_id))
    return Span(Job.decode(jobs[0].encode()).trace_context) if jobs else UNTRACED


async def repair_each(database: Database, repair: Callable[[T], Awaitable[object]], runs: Sequence[T]) -> None:
    """Repair many runs at once; one that cannot be repaired does not keep the others waiting."""
    outcomes = await asyncio.gather(*(repair(run) for run in runs), return_exceptions=True)
    for run, outcome in zip(runs, outcomes, strict=True):
        if isinstance(outcome, FleetError):
            raise outcome
        if isinstance(outcome, Exception):
            with await in_trace_of(database, run.run_id):
                logger.error(
                    "run %s could not be repaired", run.run_id, exc_info=outcome, extra={"run_id": run.run_id}
                )

"""The state of a run as callers see it: from KV or, after retention has removed it there, from the ledger."""

import logging
import time
import uuid
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import cache, partial
from typing import Any

from fleet_contracts.job import Job
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.snapshot import AttemptOutcome, RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.nats.stores.documents import Stored

from ..errors import LedgerUnavailable, RunNotFound
from ..ledger import reads
from ..ledger.accepted import AcceptedRuns
from ..ledger.documents import snapshot_of
from ..live.workers import FleetView
from ..resources import Part, Resources
from .schemas import Attempts, AttemptView, RunSummary
from .waiting import Waiting, why_waiting

logger = logging.getLogger(__name__)

# Fields for workers only, such as how a delivery is answered; callers do not see them.
_PRIVATE = {"ack_subject", "worker_instance_id", "attempt_floor"}
_MOST_DECISIONS = 500
_ENDED_PAGE = 500
_OUTCOMES = {
    RunStatus.COMPLETED: AttemptOutcome.COMPLETED,
    RunStatus.FAILED: AttemptOutcome.FAILED,
    RunStatus.CANCELLED: AttemptOutcome.CANCELLED,
}


# An attempt of a run, and the worker that executed it.
Writer = tuple[int, str | None]


class RunViews(Part):
    def __init__(
        self,
        shared: Resources,
        *,
        accepted: AcceptedRuns,
        workers: FleetView,
        is_unclaimed: Callable[[str, str], bool],
        why_declined: Callable[[str], str | None],
    ) -> None:
        """`is_unclaimed`: whether the job of a run (by its id and tag) was delivered and not claimed.

        `why_declined`: what a run (by its id) waits for whose flow the worker that took its job does not offer.
        """
        super().__init__(shared)
        self._accepted = accepted
        self._workers = workers
        self._is_unclaimed = is_unclaimed
        self._why_declined = why_declined

    async def find(self, run_id: str, *, tenant_id: str, linearizable: bool = False) -> RunSnapshot:
        """The run's latest state; RunNotFound also for a run of another tenant."""
        accepted = await self.accepted(run_id, tenant_id=tenant_id)
        live = await self._live(run_id, accepted, linearizable=linearizable)
        return live.value if live is not None else await self._from_ledger(run_id)

    async def find_for_watcher(self, run_id: str, accepted: RunSnapshot) -> Stored[RunSnapshot]:
        """The latest state and its KV revision, or 0 if the ledger has it and KV does not.

        An end in the ledger is final, also if KV was set back to a time before it.
        """
        self._link.require()
        live = await self._live(run_id, accepted, linearizable=True)
        if live is not None and live.value.is_terminal:
            return live
        try:
            known = await self._from_ledger(run_id)
        except LedgerUnavailable:
            if live is None:
                raise
            return live
        return live if live is not None and not known.is_terminal else Stored(known, revision=0)

    async def ended_among(self, run_ids: Sequence[str]) -> list[str]:
        """Those of the runs that have ended according to the ledger."""
        pages = [run_ids[start : start + _ENDED_PAGE] for start in range(0, len(run_ids), _ENDED_PAGE)]
        return [row.run_id for page in pages for row in await self._database.fetch(reads.ended_among(page))]

    async def _live(self, run_id: str, accepted: RunSnapshot, *, linearizable: bool) -> Stored[RunSnapshot] | None:
        try:
            stored = await self._runs.read(run_id, linearizable=linearizable)
        except MalformedMessage as error:
            logger.warning("a snapshot in KV cannot be read, the ledger answers: %s", error)
            return None
        return stored and replace(stored, value=stored.value.with_facts_of(accepted))

    async def accepted(self, run_id: str, *, tenant_id: str) -> RunSnapshot:
        """The run as it was accepted; RunNotFound also for a run of another tenant."""
        if not _is_run_id(run_id):
            raise RunNotFound(run_id=run_id)
        self._link.require()
        return await self._accepted.find(run_id, tenant_id=tenant_id)

    def public(self, snapshot: RunSnapshot, *, with_records: bool) -> bytes:
        """A snapshot as callers see it, with the state of its worker."""
        exclude = _PRIVATE if with_records else _PRIVATE | {"task_records"}
        now = time.time()
        more: dict[str, Any] = {}
        if snapshot.worker_id and (worker := self._workers.worker(snapshot.worker_id)) is not None:
            more["worker_alive"] = self._workers.is_alive(worker, now=now)
            more["worker_heartbeat_at"] = worker.last_heartbeat_at
            more["worker_tags"] = worker.tags
        if (waiting := self.why_waiting_at(now)(snapshot)) is not None:
            more["waiting_reason"] = waiting.reason
            more["waiting_detail"] = waiting.detail
        shown = snapshot.model_copy(update=more) if more else snapshot
        return shown.model_dump_json(exclude=exclude).encode()

    def why_waiting_at(self, now: float) -> Callable[[RunSnapshot | RunSummary], Waiting | None]:
        """A function for many runs: most of them wait for the same workers, whose capacity is added up once."""
        capacity = cache(partial(self._workers.capacity, now=now))

        def why(run: RunSnapshot | RunSummary) -> Waiting | None:
            unclaimed = self._is_unclaimed(run.run_id, run.tag or "")
            declined = self._why_declined(run.run_id)
            return why_waiting(run, self._workers, capacity, now=now, unclaimed=unclaimed, declined=declined)

        return why

    async def job(self, run_id: str, *, tenant_id: str) -> Job:
        """The job of the run, as it was accepted."""
        rows = await self._database.fetch(reads.run_with_documents(run_id)) if _is_run_id(run_id) else []
        if not rows or rows[0].kind.tenant_id != tenant_id:
            raise RunNotFound(run_id=run_id)
        return Job.decode(rows[0].job.encode())

    async def attempts(self, run_id: str, *, tenant_id: str) -> Attempts:
        """All attempts of the run in order, and the decisions about it."""
        snapshot = await self.find(run_id, tenant_id=tenant_id)
        rows = await self._database.fetch(reads.attempts_of(run_id))
        known = {row.attempt: AttemptView.model_validate(row._asdict()) for row in rows}
        for record in snapshot.earlier_attempts:
            row = known.get(record.attempt)
            known[record.attempt] = AttemptView(
                **record.model_dump(include={"attempt", "outcome", "worker_id", "error"}),
                # A snapshot near its size limit omits the wheels; the ledger has them.
                wheels=record.wheels or (row.wheels if row is not None else []),
                started_at=record.start_time,
                ended_at=record.end_time,
            )
        if snapshot.worker_id is not None:
            known[snapshot.attempt] = AttemptView(
                attempt=snapshot.attempt,
                outcome=_OUTCOMES.get(snapshot.status),
                worker_id=snapshot.worker_id,
                started_at=snapshot.start_time,
                ended_at=snapshot.end_time,
                error=snapshot.error,
                wheels=snapshot.wheels,
            )
        decided = await self._database.fetch(reads.decisions_about(run_id, limit=_MOST_DECISIONS))
        return Attempts(
            run_id=run_id,
            status=snapshot.status,
            max_attempts=snapshot.retry.max_attempts if snapshot.retry else 1,
            failures=snapshot.failures,
            attempts=[known[number] for number in sorted(known)],
            decisions=decided[::-1],
        )

    async def writers(self, run_id: str, *, tenant_id: str, wanted: Set[Writer]) -> Set[Writer]:
        """The attempts of the run and their workers. The ledger is read only if the snapshot lacks a wanted one."""
        snapshot = await self.find(run_id, tenant_id=tenant_id, linearizable=True)
        known: set[Writer] = {(record.attempt, record.worker_id) for record in snapshot.earlier_attempts}
        known.add((snapshot.attempt, snapshot.worker_id))
        if not wanted <= known:
            known |= {(row.attempt, row.worker_id) for row in await self._database.fetch(reads.attempts_of(run_id))}
        return known

    async def _from_ledger(self, run_id: str) -> RunSnapshot:
        rows = await self._database.fetch(reads.run_with_documents(run_id))
        if not rows:
            raise RunNotFound(run_id=run_id)
        return snapshot_of(rows[0])


def _is_run_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False

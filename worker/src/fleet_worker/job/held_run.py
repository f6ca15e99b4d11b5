"""The run while this worker holds it: its heartbeats, progress and events, and the last state of its attempt."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.problems import Problem
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.wheel import WheelInUse
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.setup import problem_fields
from fleet_kit.nats.link import NatsLink, WriteRefused

from ..boundary.frames import Conclusion, Progress
from ..boundary.wheel_set import WheelSet
from ..settings import WorkerSettings
from .disposition import Ended, Fenced, HandedBack, Outcome, RetryScheduled, Unrecorded
from .events import RunEventBatches
from .lease import ClaimLost, Lease
from .rules import conclude
from .telemetry.run_log import RunLog
from .telemetry.run_trace import RunTrace

# The shortest time between two writes of a run's task states; a run that is over sooner writes none.
_WRITE_INTERVAL_SECONDS = 0.25
_REFUSALS_BEFORE_NAK = 6
_FIRST_BACKOFF_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 2.0


class HeldRun:
    def __init__(
        self, link: NatsLink, settings: WorkerSettings, job: Job, lease: Lease, trace: RunTrace, log: RunLog
    ) -> None:
        self.lease = lease
        self._trace = trace
        self._log = log
        self._heartbeat_seconds = settings.run_heartbeat_interval_sec
        self._events = RunEventBatches(link, settings, job.run_id, lease.attempt)
        self._events.add_run_status(RunStatus.RUNNING, at=lease.snapshot.start_time or time.time())
        # Changes of the snapshot for the next write.
        self._unwritten: dict[str, Any] = {}
        # The wheels that the run is, or was, executed with; None: no runner has begun.
        self._ran_with: list[WheelInUse] | None = None
        self._outage_logged = False

    def answer_on(self, ack_subject: str) -> None:
        """The job was delivered again, and its answer goes to this subject."""
        self._unwritten["ack_subject"] = ack_subject

    def begin_with(self, wheels: WheelSet) -> None:
        """Record the runner's wheels with the next write, if they are not those that the claim has recorded."""
        self._ran_with = wheels.in_use
        if self.lease.snapshot.wheels != wheels.in_use:
            self._unwritten["wheels"] = wheels.in_use

    def add_progress(self, progress: Progress) -> None:
        self._events.add(progress.events)
        self._trace.tasks_reported(progress)
        if progress.tasks is not None:
            self._unwritten |= {"tasks": progress.tasks, "task_records": progress.task_records or {}}

    async def flush_events(self) -> None:
        with self._trace.logging():
            await self._events.flush()

    def is_write_due(self, *, now: float) -> bool:
        seconds = _WRITE_INTERVAL_SECONDS if self._unwritten else self._heartbeat_seconds
        return now - self.lease.written_at >= seconds and not self.lease.is_writing

    async def write_progress(self) -> None:
        """Write the heartbeat and what has changed. Raises ClaimLost; what an outage prevents is written later."""
        progress, self._unwritten = self._unwritten, {}
        try:
            with self._trace.writing_progress(progress):
                await self.lease.write_progress(**progress)
            self._outage_logged = False
        except NatsUnavailable as error:
            self._unwritten = {**progress, **self._unwritten}
            self.lease.written_at = time.monotonic()  # not more often than usual while NATS is away
            if not self._outage_logged:
                self._outage_logged = True
                problem = problem_fields(Problem.NATS_UNAVAILABLE)
                self._log.write(logging.WARNING, f"the run's progress could not be written: {error}", **problem)

    async def conclude_killed(
        self,
        status: RunStatus,
        error: str,
        reason: DeadLetterReason | None = None,
        *,
        flow_failed: bool = False,
        exc_type: str | None = None,
    ) -> Outcome:
        """Conclude for a runner that is dead, with the task states that it last reported."""
        tasks, records = self._unwritten.get("tasks"), self._unwritten.get("task_records")
        conclusion = Conclusion(status, error, reason, tasks, records, flow_failed=flow_failed)
        return await self.conclude(conclusion, exc_type=exc_type)

    async def conclude(self, conclusion: Conclusion, *, exc_type: str | None = None) -> Outcome:
        """End the attempt: the run ends, or waits for its retry."""
        self._events.add(conclusion.events)
        for task, failure in conclusion.task_failures.items():
            self._log.task_failed(task, failure)
        if conclusion.failure is not None:
            exc_type = conclusion.failure["exc_type"]
        if conclusion.status is RunStatus.FAILED:
            self._log.failed(conclusion.error, conclusion.reason, conclusion.failure, exc_type)
        now, chance = time.time(), random.random()  # noqa: S311 - spreads retries, guards nothing
        last = await self._write_last(lambda snapshot: conclude(snapshot, conclusion, now=now, chance=chance))
        if not isinstance(last, RunSnapshot):
            return last
        took_ms = int((now - (last.start_time or now)) * 1000)
        if last.is_terminal:
            self._log.ended(last, duration_ms=took_ms, exc_type=exc_type)
            return Ended(last.status, last.error, conclusion.reason if last.status is conclusion.status else None)
        delay = (last.not_before or now) - now
        self._log.retry_scheduled(last, delay_seconds=delay, duration_ms=took_ms, exc_type=exc_type)
        return RetryScheduled()

    async def hand_back(self, *, interrupted: bool = False, retry_seconds: float = 0.0) -> Outcome:
        now = time.time()
        last = await self._write_last(lambda snapshot: snapshot.hand_back(now=now, interrupted=interrupted))
        return HandedBack(retry_seconds) if isinstance(last, RunSnapshot) else last

    async def _write_last(self, change: Callable[[RunSnapshot], RunSnapshot]) -> RunSnapshot | Fenced | Unrecorded:
        """Write the last state: retried for as long as NATS is away, given up if NATS refuses it repeatedly."""

        def with_wheels(snapshot: RunSnapshot) -> RunSnapshot:
            if self._ran_with is not None and snapshot.wheels != self._ran_with:
                snapshot = snapshot.with_wheels(self._ran_with)
            return change(snapshot)

        status = with_wheels(self.lease.snapshot).status
        # Events go before the state: a reader that sees the run ended finds all of its output.
        await self._send_status(status)
        failures = refusals = 0
        backoff = _FIRST_BACKOFF_SECONDS
        while True:
            try:
                last = await self.lease.write(with_wheels)
            except ClaimLost as lost:
                self._log.write(logging.WARNING, f"the claim was lost: {lost}; nothing is written")
                return Fenced()
            except NatsUnavailable as error:
                failures += 1
                if failures == 1:
                    problem = problem_fields(Problem.TERMINAL_WRITE_FAILED)
                    self._log.write(logging.ERROR, f"the end of the run cannot be recorded yet: {error}", **problem)
                refusals += isinstance(error, WriteRefused)
                if refusals >= _REFUSALS_BEFORE_NAK:
                    return Unrecorded(str(error))
            else:
                if last.status is not status:
                    await self._send_status(last.status)
                return last
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _MAX_BACKOFF_SECONDS)
            await self._events.flush()  # events that waited for NATS still go before the state

    async def _send_status(self, status: RunStatus) -> None:
        self._events.add_run_status(status, at=time.time())
        await self._events.flush()

"""One job in the agent's hands: claimed, executed by a runner, kept alive, and brought to its end."""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.problems import Problem
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logging import problem_fields
from fleet_kit.nats import NatsLink, WriteRefused

from .claims import Claims
from .delivery import IN_PROGRESS, Delivery
from .disposition import Ended, Fenced, HandedBack, Outcome, Unrecorded
from .events import RunEventBatches
from .frames import Done, Progress, Run
from .lease import ClaimLost, Lease
from .pool import RunnerPool
from .registry import Registry
from .runner_process import RunnerDied, RunnerProcess
from .settings import WorkerSettings

logger = logging.getLogger(__name__)

# Task states are written together: at most so often per run, and not at all for a run that is over sooner.
_WRITE_INTERVAL_SECONDS = 0.25
_CRASH_RETRY_SECONDS = 0.2
_REFUSALS_BEFORE_NAK = 6
_MAX_BACKOFF_SECONDS = 2.0


class Ending(Enum):
    """Why the agent itself has ended a runner in mid-run."""

    FENCED = auto()
    CANCEL_OVERDUE = auto()
    STOPPING = auto()


@dataclass(frozen=True, slots=True)
class Services:
    """What every execution of one agent uses."""

    link: NatsLink
    settings: WorkerSettings
    claims: Claims
    pool: RunnerPool
    registry: Registry
    runs_dir: Path


class Execution:
    def __init__(self, services: Services, job: Job, delivery: Delivery, runner: RunnerProcess) -> None:
        self._services = services
        self._job = job
        self._runner = runner
        # By job: a redelivery replaces the delivery before, a second job for the run is answered, too.
        self._deliveries = {delivery.sequence: delivery}
        self._lease: Lease | None = None
        self._events: RunEventBatches | None = None
        self._progress: dict[str, Any] = {}
        self._in_progress_at = time.monotonic()
        self._cancel_seen_at: float | None = None
        self._ending: Ending | None = None
        self._running = False
        self._released = False
        self._outage_told = False

    @property
    def deliveries(self) -> list[Delivery]:
        return list(self._deliveries.values())

    @property
    def attempt(self) -> int | None:
        return None if self._lease is None else self._lease.attempt

    def also_answers(self, delivery: Delivery) -> None:
        """The job was delivered again while we have it."""
        self._deliveries[delivery.sequence] = delivery
        self._progress["ack_subject"] = delivery.reply

    async def run(self) -> Outcome:
        """Claim the run and bring it to an end. NatsUnavailable if it could not even be claimed."""
        services, job = self._services, self._job
        claimed = await services.claims.claim(job, self.deliveries[-1])
        if not isinstance(claimed, Lease):
            return claimed
        claimed.on_cancel = self._cancel
        self._lease = lease = claimed
        self._events = RunEventBatches(
            services.link,
            services.settings.events_subject(job.run_id),
            run_id=job.run_id,
            attempt=lease.attempt,
            worker_id=services.settings.worker_id,
        )
        self._events.add_run_status(RunStatus.RUNNING, at=lease.snapshot.start_time or time.time())
        services.registry.run_started(job.run_id)
        outcome: Outcome | None = None
        try:
            outcome = await self._execute(lease, self._events)
        finally:
            services.registry.run_ended(job.run_id, outcome.status if isinstance(outcome, Ended) else None)
        return outcome

    def release_runner(self) -> None:
        """Give the runner back, once: by the second time it may be somebody else's."""
        if not self._released:
            self._released = True
            self._services.pool.give_back(self._runner)

    def end(self, why: Ending) -> None:
        """End the runner now; what happens to the run depends on why."""
        if self._ending is None:
            self._ending = why
            if self._running:
                self._runner.kill()

    async def tend(self, ack_progress_seconds: float) -> None:
        """Called every moment while the job is in hand: acks, events, heartbeat, overdue cancel."""
        now = time.monotonic()
        grace = self._services.settings.cancel_grace_period_sec
        if self._running and self._cancel_seen_at is not None and now - self._cancel_seen_at >= grace:
            self.end(Ending.CANCEL_OVERDUE)
        if now - self._in_progress_at >= ack_progress_seconds:
            self._in_progress_at = now
            await self._say_in_progress()
        if self._lease is None or self._events is None:
            return
        await self._events.flush()
        since_write = now - self._lease.written_at
        due = since_write >= (
            _WRITE_INTERVAL_SECONDS if self._progress else self._services.settings.run_heartbeat_interval_sec
        )
        if due and self._running and not self._lease.is_writing:
            await self._show_progress(self._lease)

    async def look(self) -> None:
        """Somebody says that the snapshot has changed: the next write, now, will show how."""
        if self._lease is not None and self._running:
            await self._show_progress(self._lease)

    async def _execute(self, lease: Lease, events: RunEventBatches) -> Outcome:
        settings = self._services.settings
        folder = self._services.runs_dir / f"{self._job.run_id}-{lease.attempt}"
        request = Run(
            run_id=self._job.run_id,
            flow_name=self._job.flow_name,
            params=to_json(self._job.params).decode(),
            folder=str(folder),
            log_max_bytes=settings.run_log_max_bytes,
            records_max_bytes=settings.max_run_snapshot_bytes,
            workflow_yaml=self._job.workflow_yaml is not None,
        )
        self._running = True
        if self._ending is not None:
            self._runner.kill()
        try:
            done = await self._runner.run(request, self._on_progress)
        except RunnerDied as death:
            self._running = False
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            return await self._after_death(lease, death)
        self._running = False
        # The runner is free for the next run while the end of this one is being written.
        self.release_runner()
        return await self._after_run(lease, events, done)

    async def _after_run(self, lease: Lease, events: RunEventBatches, done: Done) -> Outcome:
        events.add(done.events)
        ended = Ended(RunStatus(done.status), done.error, done.reason)
        if ended.status is RunStatus.FAILED:
            self._log_failure(ended, done.failure or {})
        return await self._end(
            lease, ended, _states(done.tasks), done.task_records, truncated=done.task_records_truncated
        )

    async def _after_death(self, lease: Lease, death: RunnerDied) -> Outcome:
        match self._ending:
            case Ending.FENCED:
                return Fenced()
            case Ending.CANCEL_OVERDUE:
                grace = self._services.settings.cancel_grace_period_sec
                error = f"the run did not stop within {grace:g} s after the cancel request; its process was ended"
                self._log(logging.WARNING, error, **problem_fields(Problem.CANCEL_TIMED_OUT))
                return await self._end(lease, Ended(RunStatus.CANCELLED, error))
            case Ending.STOPPING:
                return await self._hand_back(lease, interrupted=False, retry_seconds=0.0)
        if lease.snapshot.status is RunStatus.CANCELLING:
            return await self._end(lease, Ended(RunStatus.CANCELLED, str(death)))
        deaths = lease.snapshot.interruptions + 1
        if deaths >= self._services.settings.runner_crash_limit:
            times = f" {deaths} times" if deaths > 1 else ""
            ended = Ended(RunStatus.FAILED, f"{death}{times}", DeadLetterReason.EXECUTION_ERROR)
            self._log_failure(ended, {})
            return await self._end(lease, ended)
        self._log(logging.WARNING, f"{death} in mid-run; the run is handed back")
        return await self._hand_back(lease, interrupted=True, retry_seconds=_CRASH_RETRY_SECONDS)

    async def _end(
        self,
        lease: Lease,
        ended: Ended,
        tasks: dict[str, TaskStatus] | None = None,
        task_records: dict[str, Any] | None = None,
        *,
        truncated: bool = False,
    ) -> Outcome:
        """`tasks` and `task_records` are missing when the runner died: then what it last told stands."""
        now = time.time()

        def finish(snapshot: RunSnapshot) -> RunSnapshot:
            final = snapshot.finish(
                ended.status,
                now=now,
                error=ended.error,
                reason=ended.reason,
                tasks=tasks or self._progress.get("tasks"),
                task_records=task_records or self._progress.get("task_records"),
            )
            return final.model_copy(update={"task_records_truncated": True}) if truncated else final

        outcome = await self._let_go(lease, finish, ended)
        if isinstance(outcome, Ended):
            took_ms = int((now - (lease.snapshot.start_time or now)) * 1000)
            self._log(logging.INFO, f"run ended {ended.status}", event="run_ended", duration_ms=took_ms)
        return outcome

    async def _hand_back(self, lease: Lease, *, interrupted: bool, retry_seconds: float) -> Outcome:
        now = time.time()
        return await self._let_go(
            lease,
            lambda snapshot: snapshot.hand_back(now=now, interrupted=interrupted),
            HandedBack(retry_seconds),
        )

    async def _let_go(self, lease: Lease, change: Callable[[RunSnapshot], RunSnapshot], outcome: Outcome) -> Outcome:
        """Write the last state. NATS being away is waited out; a write that is refused is not."""
        if self._events is not None:
            # Before the state: whoever sees the run ended finds all of its output.
            self._events.add_run_status(change(lease.snapshot).status, at=time.time())
            await self._events.flush()
        refusals = 0
        told = False
        backoff = 0.1
        while True:
            try:
                await lease.let_go(change)
            except ClaimLost as lost:
                self._log(logging.WARNING, f"the claim was lost: {lost}; nothing is written")
                return Fenced()
            except NatsUnavailable as error:
                if not told:
                    told = True
                    problem = problem_fields(Problem.TERMINAL_WRITE_FAILED)
                    self._log(logging.ERROR, f"the end of the run cannot be recorded yet: {error}", **problem)
                refusals += isinstance(error, WriteRefused)
                if refusals >= _REFUSALS_BEFORE_NAK:
                    return Unrecorded(str(error))
            else:
                return outcome
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _MAX_BACKOFF_SECONDS)

    async def _show_progress(self, lease: Lease) -> None:
        progress, self._progress = self._progress, {}
        try:
            await lease.show_progress(**progress)
            self._outage_told = False
        except ClaimLost as lost:
            self._log(logging.WARNING, f"the claim was lost: {lost}; the runner is ended")
            self.end(Ending.FENCED)
        except NatsUnavailable as error:
            self._progress = {**progress, **self._progress}
            lease.written_at = time.monotonic()  # not more often than usual while NATS is away
            if not self._outage_told:
                self._outage_told = True
                self._log(
                    logging.WARNING,
                    f"the run's progress could not be written: {error}",
                    **problem_fields(Problem.NATS_UNAVAILABLE),
                )

    async def _say_in_progress(self) -> None:
        try:
            for delivery in self.deliveries:
                await self._services.link.send(delivery.reply, IN_PROGRESS)
        except NatsUnavailable as error:
            problem = problem_fields(Problem.IN_PROGRESS_FAILED)
            self._log(logging.WARNING, f"the in_progress ack could not be sent: {error}", **problem)

    def _on_progress(self, progress: Progress) -> None:
        assert self._events is not None
        self._events.add(progress.events)
        if progress.tasks is not None:
            self._progress |= {"tasks": _states(progress.tasks), "task_records": progress.task_records or {}}

    def _cancel(self) -> None:
        if self._cancel_seen_at is None:
            self._cancel_seen_at = time.monotonic()
            if self._running:
                self._runner.cancel(self._job.run_id)

    def _log_failure(self, ended: Ended, failure: dict[str, str]) -> None:
        missing = ended.reason == DeadLetterReason.FLOW_NOT_FOUND
        problem = Problem.FLOW_NOT_FOUND if missing else Problem.EXECUTION_FAILED
        self._log(
            logging.ERROR, f"run failed: {ended.error}", reason=ended.reason, **failure, **problem_fields(problem)
        )

    def _log(self, level: int, message: str, **fields: Any) -> None:
        about = {
            "run_id": self._job.run_id,
            "flow_name": self._job.flow_name,
            "tag": self._job.tag,
            "worker_id": self._services.settings.worker_id,
        }
        logger.log(level, "%s", message, extra={**about, **fields}, stacklevel=2)


def _states(tasks: dict[str, str]) -> dict[str, TaskStatus]:
    """A runner tells words."""
    return {name: TaskStatus(state) for name, state in tasks.items()}

"""One job in the agent's hands: claim, execution by a runner, heartbeats and the last write."""

import asyncio
import logging
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from pydantic_core import to_json

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.log_events import LogStatus
from fleet_contracts.problems import Problem
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_contracts.wheel import WheelInUse
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.setup import problem_fields
from fleet_kit.nats.link import WriteRefused

from ..boundary.frames import Done, Progress, Run
from ..boundary.memory import is_over, sentence_about
from ..boundary.wheel_set import WheelSet
from ..pool.runner_process import RunnerDied, RunnerProcess
from .conclusion import Conclusion, conclude, having_run_with, with_trouble
from .delivery import IN_PROGRESS, Delivery
from .disposition import Ended, Fenced, HandedBack, Outcome, RetryScheduled, Unrecorded
from .events import RunEventBatches
from .lease import ClaimLost, Lease
from .rules import is_past_deadline
from .services import Services
from .telemetry.run_log import RunLog
from .telemetry.run_trace import RunTrace
from .turn import Turn

# The shortest time between two writes of a run's task states; a run that is over sooner writes none.
_WRITE_INTERVAL_SECONDS = 0.25
_CRASH_RETRY_SECONDS = 0.2
_REFUSALS_BEFORE_NAK = 6
_MAX_BACKOFF_SECONDS = 2.0

_MAY_COME_BY_WHEEL = {DeadLetterReason.FLOW_NOT_FOUND, DeadLetterReason.CALLABLE_NOT_ALLOWED}
# With any other reason, the runner has found no flow to run.
_HAS_RUN = {None, DeadLetterReason.EXECUTION_ERROR}


class Ending(Enum):
    """Why the agent itself has ended a runner in mid-run."""

    FENCED = auto()
    CANCEL_OVERDUE = auto()
    DEADLINE = auto()
    MEMORY = auto()
    STOPPING = auto()


class Execution:
    def __init__(self, services: Services, job: Job, delivery: Delivery) -> None:
        self._services = services
        self._job = job
        self.trace = RunTrace(job, services.settings.worker_id)
        tells_messages = services.settings.log_exception_messages
        self.log = RunLog(job, delivery, self.trace, tells_exception_messages=tells_messages)
        # By stream sequence: a redelivery replaces the delivery before; a second job for the run is answered, too.
        self._deliveries = {delivery.sequence: delivery}
        self._lease: Lease | None = None
        self._events: RunEventBatches | None = None
        self._progress: dict[str, Any] = {}
        self._in_progress_at = time.monotonic()
        self._cancel_seen_at: float | None = None
        self._ending: Ending | None = None
        # True until the runner is done with the run, or it is certain that none will begin it.
        self.needs_runner = True
        self._turn = Turn(services.pool, self._is_unwanted)
        # The wheels that the run is, or was, executed with; None: no runner has begun.
        self._ran_with: list[WheelInUse] | None = None
        # Set only while a runner executes the run.
        self._runner: RunnerProcess | None = None
        self._outage_told = False

    @property
    def deliveries(self) -> list[Delivery]:
        return list(self._deliveries.values())

    @property
    def snapshot(self) -> RunSnapshot | None:
        """The run as we last wrote it; None if we never held it."""
        return None if self._lease is None else self._lease.snapshot

    @property
    def attempt(self) -> int | None:
        return None if self._lease is None else self._lease.attempt

    def also_answers(self, delivery: Delivery) -> None:
        """Add a redelivery of the job in hand: it gets the same answer."""
        self._deliveries[delivery.sequence] = delivery
        self._progress["ack_subject"] = delivery.reply

    async def run(self) -> Outcome:
        """Claim the run and bring it to an end. NatsUnavailable if it could not even be claimed."""
        try:
            return await self._run()
        finally:
            self.needs_runner = False

    async def _run(self) -> Outcome:
        services, job = self._services, self._job
        begun = time.perf_counter()
        with self.trace.claiming() as claiming:
            claimed = await services.claims.claim(job, self.deliveries[-1])
            if isinstance(claimed, Lease):
                self.trace.claimed(claimed.snapshot, claiming)
        if not isinstance(claimed, Lease):
            if isinstance(claimed, Ended) and claimed.status is RunStatus.FAILED:
                self.log.failed(claimed.error, claimed.reason)
            return claimed
        services.metrics.claim_seconds.observe(time.perf_counter() - begun)
        if (delivery := self.deliveries[-1]).num_delivered == 1:
            # Not for a redelivery: before it, the job was in a worker's hands, not in the queue.
            services.metrics.queue_wait_seconds.observe(max(time.time() - delivery.stored_at, 0.0))
        claimed.on_cancel = self._cancel
        self._lease = lease = claimed
        self._events = RunEventBatches(
            services.link,
            services.settings.events_subject(services.settings.worker_id, job.run_id),
            run_id=job.run_id,
            attempt=lease.attempt,
            worker_id=services.settings.worker_id,
        )
        self._events.add_run_status(RunStatus.RUNNING, at=lease.snapshot.start_time or time.time())
        services.registry.run_started(job.run_id)
        self.log.begun(lease.attempt)
        outcome: Outcome | None = None
        try:
            outcome = await self._execute(lease, self._events)
        finally:
            services.registry.run_ended(job.run_id, outcome.status if isinstance(outcome, Ended) else None)
        return outcome

    async def tell_lost_attempt(self) -> None:
        """Add this attempt to the run's history after the claim was lost."""
        if self._lease is not None:
            await self._lease.tell_attempt()

    def end(self, why: Ending) -> None:
        """Kill the runner, or stop waiting for one; what happens to the run depends on the reason."""
        if self._ending is None:
            self._ending = why
            if self._runner is not None:
                self._runner.kill()
            else:
                self._turn.give_up()

    def step_back(self) -> None:
        """Hand the run back, unless a runner has begun it."""
        if self._runner is None and self.needs_runner:
            self.end(Ending.STOPPING)

    async def tend(self, ack_progress_seconds: float, *, ack_wait_seconds: float) -> None:
        """Periodic work on a job in hand: in-progress acks, events, heartbeat, cancel, deadline, memory."""
        now = time.monotonic()
        grace = self._services.settings.cancel_grace_period_sec
        if self._runner is not None and self._cancel_seen_at is not None and now - self._cancel_seen_at >= grace:
            self.end(Ending.CANCEL_OVERDUE)
        if self.needs_runner and self._lease is not None and is_past_deadline(self._lease.snapshot, now=time.time()):
            self.end(Ending.DEADLINE)
        if await self._is_over_memory():
            self.end(Ending.MEMORY)
        if now - self._in_progress_at >= ack_progress_seconds:
            self._in_progress_at = now
            await self._say_in_progress(ack_wait_seconds)
        if self._lease is None or self._events is None:
            return
        with self.trace.saying():
            await self._events.flush()
        since_write = now - self._lease.written_at
        due = since_write >= (
            _WRITE_INTERVAL_SECONDS if self._progress else self._services.settings.run_heartbeat_interval_sec
        )
        if due and self.needs_runner and not self._lease.is_writing:
            await self._show_progress(self._lease)

    async def _is_over_memory(self) -> bool:
        limit, runner = self._services.settings.run_memory_limit_bytes, self._runner
        if not limit or runner is None or not await is_over(limit, runner.pid, idle_bytes=runner.idle_bytes):
            return False
        return runner is self._runner

    async def look(self) -> None:
        """Write at once, after a hint that the snapshot has changed: a wrong revision makes us read it."""
        if self._lease is not None and self.needs_runner:
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
            workflow_yaml=self._job.workflow_yaml,
        )
        while True:
            claimed_at = lease.written_at
            runner = await self._turn.wait()
            if runner is None:
                self.needs_runner = False
                return await self._not_begun(lease)
            self._note_wheels(lease, runner.wheels)
            self._runner = runner
            begun = time.perf_counter()
            try:
                with self.trace.executing():
                    done = await runner.run(request, self._on_progress)
                    self.trace.executed(done)
                found = done.reason in _HAS_RUN
                self._services.metrics.note_run(self._job.flow_name, time.perf_counter() - begun, found=found)
            except RunnerDied as death:
                self._runner, self.needs_runner = None, False
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
                return await self._after_death(lease, death)
            self._runner = None
            if done.reason in _MAY_COME_BY_WHEEL and self._services.wheels is not None:
                self._services.pool.give_back(runner)
                await self._turn.wait_for(self._services.wheels.catch_up(claimed_at))
                if self._is_unwanted():
                    self.needs_runner = False
                    return await self._not_begun(lease)
                if self._services.pool.wheels is not runner.wheels:
                    continue  # a wheel that was just installed may have what was missing
                done = replace(done, error=with_trouble(done.error, self._services.wheels.trouble))
                self.needs_runner = False
            else:
                self.needs_runner = False
                # The runner is free for the next run while the end of this one is being written.
                self._services.pool.give_back(runner)
            return await self._after_run(lease, events, done)

    def _note_wheels(self, lease: Lease, wheels: WheelSet) -> None:
        """Note the runner's wheels for the next write, if they are not those that the claim has recorded."""
        self._ran_with = wheels.in_use
        if lease.snapshot.wheels != wheels.in_use:
            self._progress["wheels"] = wheels.in_use

    def _is_unwanted(self) -> bool:
        """Whether the run must not begin any more: it was cancelled, or ended by the agent."""
        return self._ending is not None or self._cancel_seen_at is not None

    async def _not_begun(self, lease: Lease) -> Outcome:
        match self._ending:
            case Ending.FENCED:
                return Fenced()
            case Ending.DEADLINE:
                error = "the run's deadline passed while it waited for a runner"
                conclusion = Conclusion(RunStatus.FAILED, error, DeadLetterReason.DEADLINE_EXCEEDED)
                return await self._conclude(lease, conclusion)
        if self._cancel_seen_at is not None:
            return await self._conclude(lease, Conclusion(RunStatus.CANCELLED))
        if self._ending is None:
            # It was claimed ahead, and the run before it takes longer than expected.
            self._services.pool.note_overbooked()
        return await self._hand_back(lease, interrupted=False, retry_seconds=0.0)

    async def _after_run(self, lease: Lease, events: RunEventBatches, done: Done) -> Outcome:
        events.add(done.events)
        for task, failure in done.task_failures.items():
            self.log.task_failed(task, failure)
        conclusion = Conclusion(
            status=RunStatus(done.status),
            error=done.error,
            reason=DeadLetterReason(done.reason) if done.reason is not None else None,
            tasks=_states(done.tasks),
            task_records=done.task_records,
            task_records_truncated=done.task_records_truncated,
            result=done.result,
            result_truncated=done.result_truncated,
            flow_failed=done.reason == DeadLetterReason.EXECUTION_ERROR,
        )
        return await self._conclude(lease, conclusion, done.failure)

    async def _after_death(self, lease: Lease, death: RunnerDied) -> Outcome:
        match self._ending:
            case Ending.FENCED:
                return Fenced()
            case Ending.CANCEL_OVERDUE:
                grace = self._services.settings.cancel_grace_period_sec
                error = f"the run did not stop within {grace:g} s after the cancel request; its process was ended"
                self.log.say(
                    logging.WARNING, error, status=LogStatus.TIMEOUT, **problem_fields(Problem.CANCEL_TIMED_OUT)
                )
                return await self._conclude(lease, self._last_told(RunStatus.CANCELLED, error))
            case Ending.DEADLINE:
                error = "the run's deadline passed while it was running; its process was ended"
                reason = DeadLetterReason.DEADLINE_EXCEEDED
                return await self._conclude(lease, self._last_told(RunStatus.FAILED, error, reason))
            case Ending.MEMORY:
                error = f"{sentence_about(self._services.settings.run_memory_limit_bytes)}; its processes were ended"
                last_told = self._last_told(RunStatus.FAILED, error, DeadLetterReason.EXECUTION_ERROR)
                return await self._conclude(lease, replace(last_told, flow_failed=True))
            case Ending.STOPPING:
                return await self._hand_back(lease, interrupted=False, retry_seconds=0.0)
        if lease.snapshot.status is RunStatus.CANCELLING:
            return await self._conclude(lease, self._last_told(RunStatus.CANCELLED, str(death)))
        self._services.metrics.runner_deaths.inc()
        deaths = lease.snapshot.interruptions + 1
        if deaths >= self._services.settings.runner_crash_limit:
            times = f" {deaths} times" if deaths > 1 else ""
            reason = DeadLetterReason.EXECUTION_ERROR
            last_told = self._last_told(RunStatus.FAILED, f"{death}{times}", reason)
            return await self._conclude(lease, last_told, exc_type=type(death).__name__)
        self.log.say(logging.WARNING, f"{death} in mid-run; the run is handed back")
        return await self._hand_back(lease, interrupted=True, retry_seconds=_CRASH_RETRY_SECONDS)

    def _last_told(self, status: RunStatus, error: str, reason: DeadLetterReason | None = None) -> Conclusion:
        """A conclusion for a dead runner, with the task states that it last reported."""
        return Conclusion(
            status,
            error,
            reason,
            tasks=self._progress.get("tasks"),
            task_records=self._progress.get("task_records"),
        )

    async def _conclude(
        self,
        lease: Lease,
        conclusion: Conclusion,
        failure: dict[str, str] | None = None,
        *,
        exc_type: str | None = None,
    ) -> Outcome:
        """End the attempt: the run ends, or waits for its retry."""
        if failure is not None:
            exc_type = failure["exc_type"]
        if conclusion.status is RunStatus.FAILED:
            self.log.failed(conclusion.error, conclusion.reason, failure, exc_type)
        now, chance = time.time(), random.random()  # noqa: S311 - spreads retries, guards nothing
        last = await self._let_go(lease, lambda snapshot: conclude(snapshot, conclusion, now=now, chance=chance))
        if not isinstance(last, RunSnapshot):
            return last
        took_ms = int((now - (last.start_time or now)) * 1000)
        if last.is_terminal:
            self.log.ended(last, duration_ms=took_ms, exc_type=exc_type)
            return Ended(last.status, last.error, conclusion.reason if last.status is conclusion.status else None)
        delay = (last.not_before or now) - now
        self.log.tried_again(last, delay_seconds=delay, duration_ms=took_ms, exc_type=exc_type)
        return RetryScheduled()

    async def _hand_back(self, lease: Lease, *, interrupted: bool, retry_seconds: float) -> Outcome:
        now = time.time()
        last = await self._let_go(lease, lambda snapshot: snapshot.hand_back(now=now, interrupted=interrupted))
        return HandedBack(retry_seconds) if isinstance(last, RunSnapshot) else last

    async def _let_go(
        self, lease: Lease, change: Callable[[RunSnapshot], RunSnapshot]
    ) -> RunSnapshot | Fenced | Unrecorded:
        """Write the last state: retried for as long as NATS is away, given up if NATS refuses it repeatedly."""
        change = having_run_with(self._ran_with, change)
        status = change(lease.snapshot).status
        # Events go before the state: a reader that sees the run ended finds all of its output.
        await self._tell(status)
        refusals = 0
        told = False
        backoff = 0.1
        while True:
            try:
                last = await lease.let_go(change)
            except ClaimLost as lost:
                self.log.say(logging.WARNING, f"the claim was lost: {lost}; nothing is written")
                return Fenced()
            except NatsUnavailable as error:
                if not told:
                    told = True
                    problem = problem_fields(Problem.TERMINAL_WRITE_FAILED)
                    self.log.say(logging.ERROR, f"the end of the run cannot be recorded yet: {error}", **problem)
                refusals += isinstance(error, WriteRefused)
                if refusals >= _REFUSALS_BEFORE_NAK:
                    return Unrecorded(str(error))
            else:
                if last.status is not status:
                    await self._tell(last.status)
                return last
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _MAX_BACKOFF_SECONDS)
            if self._events is not None:
                await self._events.flush()  # events that waited for NATS still go before the state

    async def _tell(self, status: RunStatus) -> None:
        if self._events is not None:
            self._events.add_run_status(status, at=time.time())
            await self._events.flush()

    async def _show_progress(self, lease: Lease) -> None:
        progress, self._progress = self._progress, {}
        try:
            with self.trace.telling(progress):
                await lease.show_progress(**progress)
            self._outage_told = False
        except ClaimLost as lost:
            self.log.say(logging.WARNING, f"the claim was lost: {lost}; the runner is ended")
            self.end(Ending.FENCED)
        except NatsUnavailable as error:
            self._progress = {**progress, **self._progress}
            lease.written_at = time.monotonic()  # not more often than usual while NATS is away
            if not self._outage_told:
                self._outage_told = True
                self.log.say(
                    logging.WARNING,
                    f"the run's progress could not be written: {error}",
                    **problem_fields(Problem.NATS_UNAVAILABLE),
                )

    async def _say_in_progress(self, ack_wait_seconds: float) -> None:
        try:
            for delivery in self.deliveries:
                await self._services.link.send(delivery.reply, IN_PROGRESS)
            self.log.heartbeat(ack_wait_seconds=ack_wait_seconds)
        except NatsUnavailable as error:
            problem = problem_fields(Problem.IN_PROGRESS_FAILED)
            self.log.say(logging.WARNING, f"the in_progress ack could not be sent: {error}", **problem)

    def _on_progress(self, progress: Progress) -> None:
        assert self._events is not None
        self._events.add(progress.events)
        self.trace.tasks_told(progress)
        if progress.tasks is not None:
            self._progress |= {"tasks": _states(progress.tasks), "task_records": progress.task_records or {}}

    def _cancel(self) -> None:
        if self._cancel_seen_at is None:
            self._cancel_seen_at = time.monotonic()
            if self._runner is not None:
                self._runner.cancel(self._job.run_id)
            else:
                self._turn.give_up()


def _states(tasks: dict[str, str]) -> dict[str, TaskStatus]:
    """Task states from a frame, where they are plain strings."""
    return {name: TaskStatus(state) for name, state in tasks.items()}

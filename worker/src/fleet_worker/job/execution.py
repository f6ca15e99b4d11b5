"""One job in the agent's hands: claimed, executed by a runner, kept alive meanwhile, and concluded."""

import asyncio
import logging
import shutil
import time
from dataclasses import replace

from pydantic_core import to_json

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.log_events import LogStatus
from fleet_contracts.problems import Problem
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.setup import problem_fields
from fleet_kit.waiting import is_set_within

from ..boundary.frames import Conclusion, Run
from ..boundary.memory import is_over, sentence_about
from ..pool.runner_process import RunnerDied, RunnerProcess
from . import states
from .declining import FlowNowhere
from .delivery import IN_PROGRESS, Delivery
from .disposition import DeclinedJob, Ended, Fenced, HandedBack, NoClaim, Outcome
from .held_run import HeldRun
from .lease import ClaimLost, Lease
from .rules import is_past_deadline
from .services import Services
from .states import Claiming, Concluding, Declining, Killed, NotClaimed, Running, State, StopReason, WaitingForRunner
from .telemetry.run_log import RunLog
from .telemetry.run_trace import RunTrace
from .turn import Turn

_CRASH_RETRY_SECONDS = 0.2
# Between two requests about a job that is kept.
_SHORTEST_PAUSE_SECONDS = 0.05

_MAY_COME_BY_WHEEL = {DeadLetterReason.FLOW_NOT_FOUND, DeadLetterReason.CALLABLE_NOT_ALLOWED}
# With any other reason, the runner has found no flow to run.
_HAS_RUN = {None, DeadLetterReason.EXECUTION_ERROR}


class Execution:
    def __init__(self, services: Services, job: Job, delivery: Delivery) -> None:
        self._services = services
        self._job = job
        self._state: State = Claiming()
        # Set when the run is claimed although its flow is not offered here.
        self._nowhere: FlowNowhere | None = None
        self.trace = RunTrace(job, services.settings.worker_id)
        self.log = RunLog(job, delivery, self.trace, services.settings.log_exception_messages)
        # By stream sequence, the latest last: a redelivery replaces the delivery before; a second job for the run is
        # answered, too.
        self._deliveries = {delivery.sequence: delivery}
        self._in_progress_at = time.monotonic()
        self._keeping_alive = asyncio.Lock()

    @property
    def deliveries(self) -> list[Delivery]:
        return list(self._deliveries.values())

    @property
    def snapshot(self) -> RunSnapshot | None:
        """The run as we last wrote it; None if we never held it."""
        return None if self._held is None else self._held.lease.snapshot

    @property
    def attempt(self) -> int | None:
        return None if self._held is None else self._held.lease.attempt

    @property
    def needs_runner(self) -> bool:
        """True until the runner is done with the run, or it is certain that none will begin it."""
        return not isinstance(self._state, Concluding | Declining | NotClaimed)

    @property
    def _held(self) -> HeldRun | None:
        return None if isinstance(self._state, Claiming | Declining | NotClaimed) else self._state.held

    def also_answers(self, delivery: Delivery) -> None:
        """Add a redelivery of the job in hand: it gets the same answer."""
        self._deliveries.pop(delivery.sequence, None)
        self._deliveries[delivery.sequence] = delivery
        if self._held is not None:
            self._held.answer_on(delivery.reply)

    def stop(self, why: StopReason) -> None:
        """Kill the runner, or stop waiting for one; what happens to the run depends on the reason."""
        self._enter(states.stopped(self._state, why))

    def step_back(self) -> None:
        """Hand the run back, unless a runner has begun it."""
        if isinstance(self._state, Claiming | Declining | WaitingForRunner):
            self.stop(StopReason.STOPPING)

    def give_up_declined(self) -> None:
        """Give the job back, if it is kept for another worker."""
        if isinstance(self._state, Declining):
            self.stop(StopReason.STOPPING)

    def _cancel(self) -> None:
        self._enter(states.cancelled(self._state, at=time.monotonic()))

    def _enter(self, new: State) -> None:
        """The only change of state after the claim, with what it does to the runner or to the wait for one."""
        old, self._state = self._state, new
        match old, new:
            case Claiming(), Declining():
                # The job needs no runner any more: another one may be pulled.
                self._services.pool.changed.set()
            case Declining(given_up), NotClaimed():
                given_up.set()
            case WaitingForRunner(turn=turn), Concluding():
                turn.give_up()
            case Running(runner=runner), Killed():
                runner.kill()
            case Running(runner=runner, cancelled_at=None), Running(cancelled_at=float()):
                runner.cancel(self._job.run_id)

    async def run(self) -> Outcome:
        """Claim the run and bring it to an end. NatsUnavailable if it could not even be claimed."""
        registry, run_id = self._services.registry, self._job.run_id
        outcome: Outcome | None = None
        try:
            declined = await self._decline()
            if isinstance(declined, DeclinedJob):
                return declined
            self._nowhere = declined
            held = await self._claim()
            if not isinstance(held, HeldRun):
                return held
            registry.run_started(run_id)
            self.log.begun(held.lease.attempt)
            try:
                outcome = await self._execute(held)
            finally:
                registry.run_ended(run_id, outcome.status if isinstance(outcome, Ended) else None)
            return outcome
        finally:
            self._enter(states.over(self._state))

    async def record_lost_attempt(self) -> None:
        if self._held is not None:
            await self._held.lease.record_attempt()

    async def keep_alive(self, ack_progress_seconds: float, *, ack_wait_seconds: float) -> None:
        """Periodic work on a job in hand: limits, in-progress acks, events, heartbeat."""
        if self._keeping_alive.locked():
            return  # the previous call still waits for NATS
        async with self._keeping_alive:
            now = time.monotonic()
            await self._check_limits(now)
            if now - self._in_progress_at >= ack_progress_seconds:
                self._in_progress_at = now
                await self._send_in_progress(ack_wait_seconds)
            if (held := self._held) is not None:
                await held.flush_events()
                if self.needs_runner and held.is_write_due(now=now):
                    await self._write_progress(held)

    async def look(self) -> None:
        """Write at once, after a hint that the snapshot has changed: a wrong revision makes us read it."""
        if self._held is not None and self.needs_runner:
            await self._write_progress(self._held)

    async def _check_limits(self, now: float) -> None:
        """Stop the run if its cancel is overdue, its deadline has passed or it uses too much memory."""
        settings = self._services.settings
        match self._state:
            case Running(cancelled_at=float(seen_at)) if now - seen_at >= settings.cancel_grace_period_sec:
                self.stop(StopReason.CANCEL_OVERDUE)
            case WaitingForRunner(held) | Running(held) if is_past_deadline(held.lease.snapshot, now=time.time()):
                self.stop(StopReason.DEADLINE)
            case Running(runner=runner) if await self._is_over_memory(runner):
                # It may have ended its run while it was measured.
                if isinstance(self._state, Running) and self._state.runner is runner:
                    self.stop(StopReason.MEMORY)

    async def _is_over_memory(self, runner: RunnerProcess) -> bool:
        limit = self._services.settings.run_memory_limit_bytes
        return limit > 0 and await is_over(limit, runner.pid, idle_bytes=runner.idle_bytes)

    async def _decline(self) -> DeclinedJob | FlowNowhere | None:
        """What becomes of the job if its flow is not offered here; None: it is executed here.

        The job is kept until another worker takes it: given back, it would be the next one that is taken here.
        """
        declining, job = self._services.declining, self._job
        verdict = await declining.decline(job, self.deliveries[-1])
        while isinstance(verdict, DeclinedJob) and verdict.retry_seconds is not None:
            if not isinstance(self._state, Declining):
                if not declining.has_room:
                    return verdict
                self._enter(states.declined(self._state, asyncio.Event()))
            if not isinstance(state := self._state, Declining):
                return DeclinedJob(0.0)
            with declining.keeping():
                if await is_set_within(state.given_up, max(verdict.retry_seconds, _SHORTEST_PAUSE_SECONDS)):
                    return DeclinedJob(0.0)
                if declining.offers(job.flow_name):
                    # It has come meanwhile: the job is taken again when a runner is free.
                    return DeclinedJob(0.0)
                verdict = await declining.decline_again(job, self.deliveries[-1])
        if isinstance(verdict, FlowNowhere):
            self._enter(states.offered_nowhere(self._state))
            if isinstance(self._state, NotClaimed):
                return DeclinedJob(0.0)
        return verdict

    async def _claim(self) -> HeldRun | NoClaim:
        services, job = self._services, self._job
        begun, claimed_for = time.perf_counter(), self.deliveries[-1]
        with self.trace.claiming() as claiming:
            lease = await services.claims.claim(job, claimed_for)
            if isinstance(lease, Lease):
                self.trace.claimed(lease.snapshot, claiming)
        if not isinstance(lease, Lease):
            if isinstance(lease, Ended) and lease.status is RunStatus.FAILED:
                self.log.failed(lease.error, lease.reason)
            return lease
        services.metrics.claim_seconds.observe(time.perf_counter() - begun)
        if (delivery := self.deliveries[-1]).num_delivered == 1:
            # Not for a redelivery: before it, the job was in a worker's hands, not in the queue.
            services.metrics.queue_wait_seconds.observe(max(time.time() - delivery.stored_at, 0.0))
        held = HeldRun(services.link, services.settings, job, lease, self.trace, self.log)
        lease.on_cancel = self._cancel
        if delivery is not claimed_for:
            held.answer_on(delivery.reply)
        turn = Turn(services.pool, is_wanted=lambda: isinstance(self._state, WaitingForRunner))
        self._enter(states.claimed(self._state, held, turn))
        return held

    async def _execute(self, held: HeldRun) -> Outcome:
        pool, wheels, nowhere = self._services.pool, self._services.wheels, self._nowhere
        declining, flow_name = self._services.declining, self._job.flow_name
        if nowhere is not None and nowhere.error is not None and not declining.offers(flow_name):
            self._enter(states.over(self._state))
            error = declining.why_missing(flow_name) or nowhere.error
            return await self._conclude(held, Conclusion(RunStatus.FAILED, error, DeadLetterReason.FLOW_NOT_FOUND))
        request = self._request(held)
        while isinstance(waiting := self._state, WaitingForRunner):
            claimed_at = held.lease.written_at
            runner = await waiting.turn.wait()
            if runner is None:
                self.stop(StopReason.NO_RUNNER)
                break
            held.begin_with(runner.wheels)
            self._enter(Running(held, runner))
            try:
                conclusion = await self._run_on(runner, request, held)
            except RunnerDied as death:
                self._enter(states.over(self._state))
                await asyncio.to_thread(shutil.rmtree, request.folder, ignore_errors=True)
                return await self._after_death(held, death)
            if conclusion.reason not in _MAY_COME_BY_WHEEL or wheels is None:
                self._enter(states.over(self._state))
                # The runner is free for the next run while the end of this one is being written.
                pool.give_back(runner)
                return await self._conclude(held, conclusion)
            self._enter(states.without_flow(self._state, waiting.turn))
            pool.give_back(runner)
            if isinstance(self._state, WaitingForRunner):
                await waiting.turn.wait_for(wheels.catch_up(claimed_at))
            # Another version may have what was missing.
            if isinstance(self._state, WaitingForRunner) and pool.version is runner.version:
                self._enter(states.over(self._state))
                return await self._conclude(held, conclusion)
        return await self._not_begun(held)

    async def _conclude(self, held: HeldRun, conclusion: Conclusion) -> Outcome:
        """Conclude what a runner has reported. A flow that it did not find may be offered by another worker."""
        services, job = self._services, self._job
        if conclusion.reason is DeadLetterReason.FLOW_NOT_FOUND and job.workflow_yaml is None:
            services.declining.note_missing(job.flow_name, conclusion.error or "it was not found")
            is_decided = self._nowhere is not None and self._nowhere.error is not None
            asked = None if is_decided else await services.declining.ask(job, self.deliveries[-1])
            verdict = asked or self._nowhere or FlowNowhere()
            if isinstance(verdict, DeclinedJob):
                outcome = await held.hand_back()
                return verdict if isinstance(outcome, HandedBack) else outcome
            # The sentence of a worker that has the flow, and cannot load it, says more.
            if verdict.error is not None and job.flow_name not in services.pool.flows:
                conclusion = replace(conclusion, error=verdict.error)
        if conclusion.reason in _MAY_COME_BY_WHEEL and services.wheels is not None and services.wheels.last_error:
            hint = f"it may be missing because the last wheel sync failed: {services.wheels.last_error}"
            conclusion = replace(conclusion, error=f"{conclusion.error}; {hint}")
        return await held.conclude(conclusion)

    def _request(self, held: HeldRun) -> Run:
        settings, job = self._services.settings, self._job
        return Run(
            run_id=job.run_id,
            flow_name=job.flow_name,
            params=to_json(job.params).decode(),
            folder=str(self._services.runs_dir / f"{job.run_id}-{held.lease.attempt}"),
            log_max_bytes=settings.run_log_max_bytes,
            records_max_bytes=settings.max_run_snapshot_bytes,
            workflow_yaml=job.workflow_yaml,
        )

    async def _run_on(self, runner: RunnerProcess, request: Run, held: HeldRun) -> Conclusion:
        begun = time.perf_counter()
        with self.trace.executing():
            conclusion = await runner.run(request, held.add_progress)
            self.trace.executed(conclusion)
        found = conclusion.reason in _HAS_RUN
        self._services.metrics.note_run(self._job.flow_name, time.perf_counter() - begun, found=found)
        return conclusion

    @property
    def _why(self) -> StopReason | None:
        return self._state.why if isinstance(self._state, Concluding) else None

    async def _not_begun(self, held: HeldRun) -> Outcome:
        match self._why:
            case StopReason.FENCED:
                return Fenced()
            case StopReason.DEADLINE:
                error = "the run's deadline passed while it waited for a runner"
                return await held.conclude(Conclusion(RunStatus.FAILED, error, DeadLetterReason.DEADLINE_EXCEEDED))
            case StopReason.CANCELLED | StopReason.CANCEL_OVERDUE:
                return await held.conclude(Conclusion(RunStatus.CANCELLED))
            case StopReason.NO_RUNNER:
                # It was claimed ahead, and the run before it takes longer than expected.
                self._services.pool.note_overbooked()
        return await held.hand_back()

    async def _after_death(self, held: HeldRun, death: RunnerDied) -> Outcome:
        settings = self._services.settings
        match self._why:
            case StopReason.FENCED:
                return Fenced()
            case StopReason.CANCEL_OVERDUE:
                grace = settings.cancel_grace_period_sec
                error = f"the run did not stop within {grace:g} s after the cancel request; its process was ended"
                problem = problem_fields(Problem.CANCEL_TIMED_OUT)
                self.log.write(logging.WARNING, error, status=LogStatus.TIMEOUT, **problem)
                return await held.conclude_killed(RunStatus.CANCELLED, error)
            case StopReason.DEADLINE:
                error = "the run's deadline passed while it was running; its process was ended"
                return await held.conclude_killed(RunStatus.FAILED, error, DeadLetterReason.DEADLINE_EXCEEDED)
            case StopReason.MEMORY:
                error = f"{sentence_about(settings.run_memory_limit_bytes)}; its processes were ended"
                reason = DeadLetterReason.EXECUTION_ERROR
                return await held.conclude_killed(RunStatus.FAILED, error, reason, flow_failed=True)
            case StopReason.STOPPING:
                return await held.hand_back()
        snapshot = held.lease.snapshot
        if snapshot.status is RunStatus.CANCELLING:
            return await held.conclude_killed(RunStatus.CANCELLED, str(death))
        self._services.metrics.runner_deaths.inc()
        deaths = snapshot.interruptions + 1
        if deaths >= settings.runner_crash_limit:
            error = f"{death} {deaths} times" if deaths > 1 else str(death)
            reason = DeadLetterReason.EXECUTION_ERROR
            return await held.conclude_killed(RunStatus.FAILED, error, reason, exc_type=type(death).__name__)
        self.log.write(logging.WARNING, f"{death} in mid-run; the run is handed back")
        return await held.hand_back(interrupted=True, retry_seconds=_CRASH_RETRY_SECONDS)

    async def _write_progress(self, held: HeldRun) -> None:
        try:
            await held.write_progress()
        except ClaimLost as lost:
            self.log.write(logging.WARNING, f"the claim was lost: {lost}; the runner is ended")
            self.stop(StopReason.FENCED)

    async def _send_in_progress(self, ack_wait_seconds: float) -> None:
        try:
            for delivery in self.deliveries:
                await self._services.link.send(delivery.reply, IN_PROGRESS)
            self.log.heartbeat(ack_wait_seconds=ack_wait_seconds)
        except NatsUnavailable as error:
            problem = problem_fields(Problem.IN_PROGRESS_FAILED)
            self.log.write(logging.WARNING, f"the in_progress ack could not be sent: {error}", **problem)

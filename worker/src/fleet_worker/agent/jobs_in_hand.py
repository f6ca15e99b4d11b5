"""The jobs that this worker has taken: each one brought to its end and answered."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator
from typing import Any

from fleet_contracts.job import Job
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.problems import Problem
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.setup import log_context, problem_fields

from ..job.answers import Answers
from ..job.declining import DecliningPace
from ..job.delivery import Delivery
from ..job.disposition import Fenced, HandedBack, Outcome, Unrecorded
from ..job.execution import Execution
from ..job.invalid import InvalidJobs
from ..job.services import Services
from ..job.telemetry.run_trace import record_outcome

logger = logging.getLogger(__name__)


class JobsInHand:
    def __init__(self, services: Services, answers: Answers, invalid_jobs: InvalidJobs) -> None:
        self._services = services
        self._answers = answers
        self._invalid_jobs = invalid_jobs
        self._held: dict[str, Execution] = {}
        # Whatever must be over, or cancelled, before the worker ends.
        self.working: set[asyncio.Task[None]] = set()
        self.declining_pace = DecliningPace()

    def __iter__(self) -> Iterator[Execution]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    @property
    def count_with_runner(self) -> int:
        """Jobs that have a runner or are to have one."""
        return sum(execution.needs_runner for execution in self)

    def accept(self, delivery: Delivery) -> None:
        try:
            job = Job.decode(delivery.data)
        except MalformedMessage as error:
            self.spawn(self._invalid_jobs.refuse(delivery, str(error)))
            return
        if (execution := self._held.get(job.run_id)) is not None:
            execution.also_answers(delivery)
            return
        execution = self._held[job.run_id] = Execution(self._services, job, delivery)
        self.spawn(self._work(execution, job))

    def refuse(self, delivery: Delivery) -> None:
        """There is no room for the job: another worker may take it."""
        self.spawn(self._answers.give(HandedBack(0.0), [delivery]))

    def look_at(self, run_id: str) -> None:
        if (execution := self._held.get(run_id)) is not None:
            self.spawn(execution.look())

    def keep_alive(self, ack_progress_seconds: float, *, ack_wait_seconds: float) -> None:
        for execution in self:
            self.spawn(execution.keep_alive(ack_progress_seconds, ack_wait_seconds=ack_wait_seconds))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.working.add(task)
        task.add_done_callback(self._finished)

    async def _work(self, execution: Execution, job: Job) -> None:
        try:
            with execution.trace.processing(execution.deliveries[0]) as traced, log_context(**execution.log.about):
                outcome = await self._bring_to_end(execution)
                self._services.metrics.count(outcome)
                self.declining_pace.note(outcome, now=time.monotonic())
                self._services.pool.changed.set()
                record_outcome(traced, outcome, execution.attempt)
                await self._answers.give(outcome, execution.deliveries, job=job, snapshot=execution.snapshot)
        finally:
            del self._held[job.run_id]
        if isinstance(outcome, Fenced):
            self.spawn(execution.record_lost_attempt())

    async def _bring_to_end(self, execution: Execution) -> Outcome:
        try:
            return await execution.run()
        except NatsUnavailable as error:
            problem = problem_fields(Problem.NATS_UNAVAILABLE)
            logger.warning("run could not be claimed: %s", error, extra=problem)
            return Unrecorded(str(error))
        except Exception as error:
            logger.exception("a run could not be brought to its end")
            return Unrecorded(f"{type(error).__name__}: {error}")

    def _finished(self, task: asyncio.Task[None]) -> None:
        self.working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("work on a job failed", exc_info=error)

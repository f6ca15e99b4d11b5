"""Publishes the dead letter of a job, if it gets one, and then answers its deliveries."""

import logging
import time
from collections.abc import Iterable

from fleet_contracts.dead_letter import DeadLetter, DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.names import DEAD_LETTER_ID, dead_letter_id
from fleet_contracts.problems import Problem
from fleet_contracts.snapshot import RunSnapshot
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.setup import problem_fields
from fleet_kit.nats.link import NatsLink

from ..settings import WorkerSettings
from .delivery import Delivery
from .disposition import AlreadyEnded, Ended, InvalidJob, Outcome, RunMissing, dispose
from .telemetry.run_trace import publishing

logger = logging.getLogger(__name__)


class Answers:
    def __init__(self, link: NatsLink, settings: WorkerSettings) -> None:
        self._link = link
        self._settings = settings

    async def give(
        self,
        outcome: Outcome,
        deliveries: Iterable[Delivery],
        *,
        job: Job | None = None,
        snapshot: RunSnapshot | None = None,
    ) -> None:
        """Carry out an outcome. `snapshot` is the run as we last wrote it, if we held it."""
        if isinstance(outcome, AlreadyEnded | Ended):
            snapshot = outcome.snapshot or snapshot
        settings = self._settings
        deliveries = list(deliveries)
        disposition = dispose(
            outcome,
            num_delivered=max(delivery.num_delivered for delivery in deliveries),
            nak_delay_sec=settings.nak_delay_sec,
            publish_execution_error=settings.dlq_publish_execution_error,
        )
        if disposition.dead_letter is not None:
            await self._publish_dead_letter(disposition.dead_letter, outcome, deliveries[-1], job, snapshot)
        if disposition.answer is None:
            return
        for delivery in deliveries:
            try:
                await self._link.send(delivery.reply, disposition.answer)
            except NatsUnavailable:
                # The job is redelivered; its snapshot then shows what is left to do.
                logger.warning("could not answer a delivery on %s; it will be repeated", delivery.subject)

    async def _publish_dead_letter(
        self,
        reason: DeadLetterReason,
        outcome: Outcome,
        delivery: Delivery,
        job: Job | None,
        snapshot: RunSnapshot | None,
    ) -> None:
        # A worker may publish dead letters for its own queues only, whatever tag the job names.
        queue = self._settings.tag_of_work_subject(delivery.subject)
        run_id = job.run_id if job is not None else outcome.run_id if isinstance(outcome, InvalidJob) else None
        ended_with = snapshot.error if snapshot is not None else None
        letter = DeadLetter(
            timestamp=time.time(),
            reason=reason,
            error=outcome.error if isinstance(outcome, InvalidJob | RunMissing | Ended) else ended_with,
            run_id=run_id,
            flow_name=job.flow_name if job is not None else None,
            tag=job.tag if job is not None else queue,
            tags=job.tags if job is not None else None,
            worker_id=(snapshot and snapshot.worker_id) or self._settings.worker_id,
            num_delivered=delivery.num_delivered,
            subject=delivery.subject,
            attempt=snapshot.attempt if snapshot is not None else None,
            tenant_id=job.tenant_id if job is not None else None,
        )
        letter_id = (
            dead_letter_id(snapshot.run_id, reopened=snapshot.reopened, attempt=snapshot.attempt, reason=reason)
            if snapshot is not None
            else f"{delivery.sequence}:{reason}"
        )
        try:
            with publishing(letter, subject := self._settings.dlq_subject(queue)):
                await self._link.publish(subject, letter.encode(), {DEAD_LETTER_ID: letter_id})
        except NatsUnavailable as error:
            logger.error(
                "a dead letter could not be published: %s",
                error,
                extra={"run_id": run_id, "reason": reason.value, **problem_fields(Problem.DEAD_LETTER_FAILED)},
            )

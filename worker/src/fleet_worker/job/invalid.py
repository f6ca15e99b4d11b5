"""Refuses messages that are not valid jobs."""

import logging
import time
from dataclasses import dataclass

import orjson

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.names import is_tag
from fleet_contracts.problems import Problem
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.setup import problem_fields

from ..settings import WorkerSettings
from .answers import Answers
from .delivery import Delivery
from .disposition import InvalidJob
from .snapshots import Snapshots
from .telemetry.metrics import WorkerMetrics
from .telemetry.run_trace import record_outcome, refusing

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InvalidJobs:
    settings: WorkerSettings
    snapshots: Snapshots
    answers: Answers
    metrics: WorkerMetrics

    async def refuse(self, delivery: Delivery, error: str) -> None:
        """Reject the message; if it names a waiting run, that run ends as FAILED."""
        outcome = InvalidJob(error, _run_id_in(delivery.data))
        tag = self.settings.tag_of_work_subject(delivery.subject)
        with refusing(delivery, outcome.run_id, tag=tag, worker_id=self.settings.worker_id) as traced:
            record_outcome(traced, outcome, None)
            reason = DeadLetterReason.INVALID_JOB.value
            about = {"run_id": outcome.run_id, "reason": reason, **problem_fields(Problem.INVALID_JOB)}
            logger.error("an invalid job was received on %s: %s", delivery.subject, error, extra=about)
            try:
                await self._end_run_of(outcome)
            except (NatsUnavailable, MalformedMessage) as problem:
                logger.warning("the run of an invalid job could not be ended: %s", problem, extra=about)
            self.metrics.count(outcome)
            await self.answers.give(outcome, [delivery])

    async def _end_run_of(self, invalid: InvalidJob) -> None:
        def failed(found: RunSnapshot | None) -> RunSnapshot | None:
            if found is None or found.is_terminal or found.is_held:
                return found
            reason = DeadLetterReason.INVALID_JOB
            return found.finish(RunStatus.FAILED, now=time.time(), error=invalid.error, reason=reason)

        if invalid.run_id is not None:
            await self.snapshots.change(invalid.run_id, failed)


def _run_id_in(data: bytes) -> str | None:
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    run_id = message.get("run_id") if isinstance(message, dict) else None
    return run_id if isinstance(run_id, str) and is_tag(run_id) else None

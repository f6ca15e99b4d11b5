"""The agent's log lines about one job: exceptions of its flow, but never its params or its output."""

import logging
from typing import Any

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.log_events import LogEvent, LogStatus
from fleet_contracts.problems import Problem
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.logs.failures import failure_meta
from fleet_kit.logs.setup import problem_fields

from ..delivery import Delivery
from .run_trace import RunTrace

logger = logging.getLogger(__name__)

# The run has failed before any of its flow was executed.
_NO_FLOW = {
    DeadLetterReason.FLOW_NOT_FOUND,
    DeadLetterReason.CALLABLE_NOT_ALLOWED,
    DeadLetterReason.REFERENCE_NOT_ALLOWED,
}
_WITHHELD = "(withheld by PYOCO_LOG_EXCEPTION_MESSAGES: see the run's error, or log at DEBUG)"


class RunLog:
    def __init__(self, job: Job, delivery: Delivery, trace: RunTrace, with_exception_messages: bool) -> None:
        self._job = job
        self._trace = trace
        self._with_exception_messages = with_exception_messages
        self._lease_id = f"{delivery.sequence}:{delivery.num_delivered}"
        self.about = {
            "run_id": job.run_id,
            "flow_name": job.flow_name,
            "tag": job.tag,
            # The request that submitted the run; jobs of other implementations do not name it.
            "request_id": job.request_id or f"lease:{self._lease_id}",
        }

    def write(self, level: int, message: str, **fields: Any) -> None:
        with self._trace.logging():
            logger.log(level, "%s", message, extra={**self.about, **fields}, stacklevel=2)

    def begun(self, attempt: int) -> None:
        """At DEBUG only: snapshot and events show it as well, and there are thousands a minute."""
        if logger.isEnabledFor(logging.DEBUG):
            meta = self._meta(attempt)
            self._log(logging.DEBUG, "run begun", LogEvent.WORKER_JOB, LogStatus.IN_PROGRESS, meta)

    def ended(self, last: RunSnapshot, *, duration_ms: int, exc_type: str | None) -> None:
        status, meta = LogStatus.COMPLETED, self._meta(last.attempt) | {"run_status": last.status}
        if last.status is RunStatus.FAILED:
            is_late = last.reason == DeadLetterReason.DEADLINE_EXCEEDED
            status = LogStatus.TIMEOUT if is_late else LogStatus.FAILED
            meta |= self._failure_meta(last.reason, exc_type)
        self._log(logging.INFO, f"run ended {last.status}", LogEvent.WORKER_JOB, status, meta, duration_ms)

    def retry_scheduled(
        self, last: RunSnapshot, *, delay_seconds: float, duration_ms: int, exc_type: str | None
    ) -> None:
        meta = self._meta(last.attempt) | self._failure_meta(DeadLetterReason.EXECUTION_ERROR, exc_type)
        meta |= {"run_status": last.status, "delay_seconds": round(delay_seconds, 3), "failures": last.failures}
        message = f"the run is tried again in {delay_seconds:.1f} s; its flow has failed {last.failures} times"
        self._log(logging.INFO, message, LogEvent.WORKER_JOB, LogStatus.FAILED, meta, duration_ms)

    def failed(
        self,
        error: str | None,
        reason: DeadLetterReason | None,
        failure: dict[str, str] | None = None,
        exc_type: str | None = None,
    ) -> None:
        """`failure` is the exception that the flow, or the code that builds it, has raised."""
        fields: dict[str, Any] = {
            **self.about,
            "reason": reason,
            **problem_fields(_problem_of(reason)),
            "meta": self._failure_meta(reason, exc_type),
        }
        if failure is None:
            logger.error("run failed: %s", error, extra=fields, stacklevel=2)
            return
        sentence = failure["sentence"] or f"the flow raised {failure['exc_type']}"
        self._raised(logging.ERROR, f"run failed: {sentence}", failure, fields)

    def task_failed(self, task: str, failure: dict[str, str]) -> None:
        """Log a failed task whose exception did not end the run: the flow goes on, or another task failed first."""
        problem, exc_type = Problem.EXECUTION_FAILED, failure["exc_type"]
        reason = DeadLetterReason.EXECUTION_ERROR
        fields = {**self.about, **problem_fields(problem), "meta": self._failure_meta(reason, exc_type)}
        self._raised(logging.WARNING, f"task {task} failed: it raised {exc_type}", failure, fields)

    def _raised(self, level: int, message: str, failure: dict[str, str], fields: dict[str, Any]) -> None:
        """Log an exception. Its message may quote params: if it is to be withheld, it is logged at DEBUG only."""
        if self._with_exception_messages:
            logger.log(level, "%s", message, extra={**fields, **failure}, stacklevel=3)
            return
        withheld = {**failure, "exc_message": _WITHHELD, "exc_traceback": failure["exc_frames"]}
        logger.log(level, "%s", message, extra={**fields, **withheld}, stacklevel=3)
        logger.debug("%s", message, extra={**fields, **failure}, stacklevel=3)

    def heartbeat(self, *, ack_wait_seconds: float) -> None:
        """At DEBUG only: every run in hand sends one per progress ack."""
        if logger.isEnabledFor(logging.DEBUG):
            timeout_ms = int(ack_wait_seconds * 1000)
            meta = {"job_type": self._job.flow_name, "lease_id": self._lease_id, "visibility_timeout_ms": timeout_ms}
            self._log(logging.DEBUG, "still at it", LogEvent.WORKER_HEARTBEAT, LogStatus.IN_PROGRESS, meta)

    def _meta(self, attempt: int) -> dict[str, Any]:
        return {"job_type": self._job.flow_name, "attempt": attempt, "queue": self._job.tag}

    def _failure_meta(self, reason: str | None, exc_type: str | None) -> dict[str, Any]:
        resource = f"flow:{self._job.flow_name}"
        return failure_meta(err_id=_problem_of(reason).err_id, exc_type=exc_type, resource=resource)

    def _log(
        self,
        level: int,
        message: str,
        event: LogEvent,
        status: LogStatus,
        meta: dict[str, Any],
        duration_ms: int = 0,
    ) -> None:
        extra = {**self.about, "event": event, "status": status, "duration_ms": duration_ms, "meta": meta}
        with self._trace.logging():
            logger.log(level, "%s", message, extra=extra, stacklevel=3)


def _problem_of(reason: str | None) -> Problem:
    return Problem.FLOW_NOT_FOUND if reason in _NO_FLOW else Problem.EXECUTION_FAILED

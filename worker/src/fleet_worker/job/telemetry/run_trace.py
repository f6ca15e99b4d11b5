"""The trace spans of one job: processing, claim, execution with its tasks, snapshot writes, dead letter."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from fleet_contracts import spans
from fleet_contracts.dead_letter import DeadLetter, DeadLetterReason
from fleet_contracts.events import EventKind
from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_contracts.trace_context import TraceContext
from fleet_kit.telemetry.tracing import UNTRACED, Attributes, Kind, Span, current, is_recording, span

from ...boundary.frames import Conclusion, Progress
from ..delivery import Delivery
from ..disposition import Ended, InvalidJob, Outcome, Unrecorded, name_of
from ..rules import waiting_since


class RunTrace:
    """Makes the spans of a job in the agent: the runner has no tracing, it reports when tasks began and ended."""

    def __init__(self, job: Job, worker_id: str) -> None:
        self._job = job
        self._about: dict[str, Any] = {**spans.about_run(job), spans.WORKER_ID: worker_id}
        self._producer: TraceContext | None = None
        self._processing: Span = UNTRACED
        # Set for a redelivered job: its waiting time is known only when the run is claimed.
        self._redelivery: Delivery | None = None
        self._executing: Span = UNTRACED
        # Start times of the running tasks.
        self._begun: dict[str, float] = {}

    def processing(self, delivery: Delivery) -> Span:
        """The span from delivery to answer; it records how long the job waited in the queue."""
        self._producer = delivery.trace or self._job.trace_context
        self._processing = _taken(delivery, self._producer, self._about)
        self._redelivery = delivery if delivery.num_delivered > 1 else None
        return self._processing

    def claiming(self) -> Span:
        return span(spans.RUN_CLAIM, self._about)

    def claimed(self, snapshot: RunSnapshot, traced: Span) -> None:
        self._about[spans.ATTEMPT] = snapshot.attempt
        traced.set(spans.ATTEMPT, snapshot.attempt)
        if (again := self._redelivery) is not None and self._producer is not None:
            self._processing.link(self._producer, _waited(waiting_since(snapshot, stored_at=again.stored_at)))

    @contextmanager
    def executing(self) -> Iterator[Span]:
        with span(spans.RUN_EXECUTE, self._about) as traced:
            self._executing = traced
            try:
                yield traced
            finally:
                # Of tasks whose end was not reported: their runner died.
                for task, begun_at in self._begun.items():
                    self._end_task(task, begun_at, time.time(), "interrupted")
                self._begun.clear()
                self._executing = UNTRACED

    def executed(self, conclusion: Conclusion) -> None:
        """Record the runner's final report; called inside of `executing`."""
        self._record_tasks(conclusion.events, conclusion.task_errors)
        self._executing.set(spans.RUN_STATUS, conclusion.status.value)
        if conclusion.status is RunStatus.FAILED:
            if conclusion.failure is not None:
                # The exception's message may quote what the flow was given: its type is enough.
                self._executing.fail(conclusion.failure["exc_type"])
            else:
                self._executing.fail((conclusion.reason or RunStatus.FAILED).value, conclusion.error)

    def tasks_reported(self, progress: Progress) -> None:
        """Make a span for each task that has ended, with the times that the runner measured."""
        if self._executing is not UNTRACED:
            records = progress.task_records or {}
            self._record_tasks(progress.events, {name: record.get("error") for name, record in records.items()})

    def _record_tasks(self, events: Sequence[Mapping[str, Any]], errors: Mapping[str, str | None]) -> None:
        if self._executing is UNTRACED:
            return
        for event in events:
            if event["kind"] != EventKind.TASK:
                continue
            if event["status"] == TaskStatus.RUNNING:
                self._begun[event["task"]] = event["at"]
            elif (begun_at := self._begun.pop(event["task"], None)) is not None:
                error = errors.get(event["task"]) or "failed" if event["status"] == TaskStatus.FAILED else None
                self._end_task(event["task"], begun_at, event["at"], error)

    def writing_progress(self, progress: Mapping[str, Any]) -> AbstractContextManager[None]:
        """The context for writing this progress: task changes belong to the trace, a mere heartbeat to none."""
        return (self._executing if "tasks" in progress else UNTRACED).active()

    def logging(self) -> AbstractContextManager[None]:
        """The context for a log line about the run: periodic work on a job runs outside of any trace."""
        return (self._processing if current() is None else UNTRACED).active()

    def _end_task(self, task: str, begun_at: float, ended_at: float, error: str | None) -> None:
        about = {**self._about, spans.TASK_NAME: task}
        traced = span(spans.task_span(task), about, parent=self._executing.context, begun_at=begun_at)
        if error is not None:
            traced.fail(error.partition(":")[0])
        traced.end(at=max(ended_at, begun_at))


def refusing(delivery: Delivery, run_id: str | None, *, tag: str, worker_id: str) -> Span:
    """The processing span of a message that is not a valid job: only its headers can name the trace."""
    return _taken(delivery, delivery.trace, {spans.RUN_ID: run_id, spans.TAG: tag, spans.WORKER_ID: worker_id})


def _taken(delivery: Delivery, producer: TraceContext | None, about: Attributes) -> Span:
    if producer is None or not is_recording():
        return span(spans.RUN_PROCESS, parent=producer)
    about = {
        **about,
        **spans.about_message(delivery.subject, "process"),
        spans.QUEUE_DELIVERIES: delivery.num_delivered,
    }
    traced = span(spans.RUN_PROCESS, about, kind=Kind.CONSUMER, parent=producer)
    if delivery.num_delivered == 1:
        traced.link(producer, _waited(delivery.stored_at))
    return traced


def _waited(since: float) -> dict[str, float]:
    """The waiting time, by two clocks unless the job was stored or handed back on this machine."""
    return {spans.QUEUE_WAIT_MS: round(max(time.time() - since, 0.0) * 1000, 3)}


def record_outcome(traced: Span, outcome: Outcome, attempt: int | None) -> None:
    if not is_recording():
        return
    traced.set(spans.ATTEMPT, attempt)
    traced.set(spans.OUTCOME, name_of(outcome))
    match outcome:
        case Ended(status=status, error=error, reason=reason):
            traced.set(spans.RUN_STATUS, status.value)
            if status is RunStatus.FAILED:
                raised = reason == DeadLetterReason.EXECUTION_ERROR
                traced.fail(reason or RunStatus.FAILED.value, None if raised else error)
        case InvalidJob(error=error):
            traced.fail(DeadLetterReason.INVALID_JOB.value, error)
        case Unrecorded(error=error):
            traced.fail("unrecorded", error)


def publishing(letter: DeadLetter, subject: str) -> Span:
    about = {**spans.about_letter(letter), **spans.about_message(subject, "send")}
    return span(spans.DEAD_LETTER_PUBLISH, about, kind=Kind.PRODUCER)


def writing(snapshot: RunSnapshot) -> Span:
    if not is_recording():
        return UNTRACED
    about = {
        **spans.about_run(snapshot),
        spans.WORKER_ID: snapshot.worker_id,
        spans.ATTEMPT: snapshot.attempt,
        spans.RUN_STATUS: snapshot.status.value,
    }
    return span(spans.RUN_SNAPSHOT_WRITE, about)

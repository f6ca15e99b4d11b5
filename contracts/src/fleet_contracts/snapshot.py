"""The run snapshot: the live state of a run in KV, and its allowed transitions (appendices C and F)."""

from collections.abc import Sequence
from enum import StrEnum
from operator import not_
from typing import Annotated, Any, Self

from pydantic import Field

from .dead_letter import DeadLetterReason
from .job import Job
from .messages import Document, MalformedMessage, is_missing
from .retry import RetryPolicy
from .status import RunStatus, TaskStatus
from .wheel import WheelInUse

# A snapshot keeps the latest attempts only; the ledger has them all.
_ATTEMPTS_KEPT = 10
_LONGEST_ATTEMPT_ERROR = 500
# Fields that never change after acceptance. Times are not among them: a retry has a new start, a requeue no deadline.
_FACTS = {
    "run_id", "flow_name", "params", "tag", "tags", "tenant_id", "api_key_id", "workflow_yaml_sha256",
    "workflow_yaml_bytes", "submitted_at", "retry", "rerun_of", "trace_id",
}  # fmt: skip

# A count of attempts, failures and the like, limited by the ledger's integer column.
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class IllegalTransition(ValueError):
    """A run may not change in this way."""


class AttemptOutcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    # The worker or its runner died in mid-run.
    INTERRUPTED = "interrupted"
    # The worker stopped gracefully and handed the run back.
    HANDED_BACK = "handed_back"


class AttemptRecord(Document):
    """An attempt that is over."""

    attempt: Count
    outcome: AttemptOutcome
    worker_id: str | None = None
    start_time: float | None = None
    end_time: float
    error: str | None = None
    wheels: list[WheelInUse] = Field(default_factory=list, exclude_if=not_)


class RunSnapshot(Document):
    # Factories for empty values: a snapshot is made for every run, and a default would be deep-copied.
    run_id: str
    flow_name: str
    status: RunStatus
    params: dict[str, Any] = Field(default_factory=dict)
    tasks: dict[str, TaskStatus] = Field(default_factory=dict)
    heartbeat_at: float
    updated_at: float

    tag: str | None = None
    tags: list[str] = Field(default_factory=list)
    worker_id: str | None = None
    task_records: dict[str, Any] = Field(default_factory=dict)
    task_records_truncated: bool = False
    start_time: float | None = None
    end_time: float | None = None
    error: str | None = None
    cancel_requested_at: float | None = None
    cancel_requested_by: str | None = None
    cancel_reason: str | None = None

    tenant_id: str | None = None
    api_key_id: str | None = None
    workflow_yaml_sha256: str | None = None
    workflow_yaml_bytes: int | None = None

    submitted_at: float | None = None
    # How often a worker has claimed this run; it only rises, and every write of a worker is fenced by it.
    attempt: Count = 0
    # New attempts get higher numbers than this: NATS has lost its store, which may have known attempts up to it.
    attempt_floor: Count | None = Field(None, exclude_if=is_missing)
    # The instance of the worker that holds the run: a restarted worker keeps its id but is another instance.
    worker_instance_id: str | None = None
    # The ack subject of the holder's delivery; with it the job can be handed back for a lost holder.
    ack_subject: str | None = None
    # How often a holder was lost in mid-run (runner or worker died).
    interruptions: Count = 0
    # The machine-readable reason of a failure, as in the dead letter.
    reason: str | None = None

    # What the flow returned; the output of each task is in its record.
    result: Any = None
    retry: RetryPolicy | None = None
    # How often the flow itself has failed; interruptions do not count.
    failures: Count = 0
    # Ended attempts of a run that goes on; the current one is in the fields above.
    earlier_attempts: list[AttemptRecord] = Field(default_factory=list)
    # The attempt that has failed and is to be retried, as its worker states; missing: none is.
    retry_of_attempt: Count | None = Field(None, exclude_if=is_missing)
    # The earliest start: a schedule, or the backoff before a retry.
    not_before: float | None = None
    # `not_before` at the time the current attempt was claimed; missing: it might begin at once.
    due_at: float | None = Field(None, exclude_if=is_missing)
    deadline_at: float | None = None
    # How often the run was reopened after its end.
    reopened: Count = 0
    rerun_of: str | None = None
    # Wheels from which the current or last attempt could import, besides the worker's own environment.
    wheels: list[WheelInUse] = Field(default_factory=list, exclude_if=not_)
    # The trace id of the run's spans; missing: the run is not traced.
    trace_id: str | None = Field(None, exclude_if=is_missing)
    # Left out because the snapshot would be too large; the ledger has the params. Written only where it is so.
    tasks_truncated: bool = Field(False, exclude_if=not_)
    result_truncated: bool = Field(False, exclude_if=not_)
    params_truncated: bool = Field(False, exclude_if=not_)

    @classmethod
    def pending(cls, job: Job, *, now: float) -> Self:
        trace = job.trace_context
        return cls(
            run_id=job.run_id,
            flow_name=job.flow_name,
            status=RunStatus.PENDING,
            params=job.params,
            heartbeat_at=now,
            updated_at=now,
            tag=job.tag,
            tags=job.tags,
            tenant_id=job.tenant_id,
            api_key_id=job.api_key_id,
            workflow_yaml_sha256=job.workflow_yaml_sha256,
            workflow_yaml_bytes=job.workflow_yaml_bytes,
            submitted_at=job.submitted_at,
            retry=job.retry,
            not_before=job.not_before,
            deadline_at=job.deadline_at,
            rerun_of=job.rerun_of,
            trace_id=trace.trace_id if trace is not None else None,
        )

    @classmethod
    def decode_of(cls, run_id: str, data: bytes) -> Self:
        """Decode the value of a run's key; MalformedMessage if it is of another run."""
        snapshot = cls.decode(data)
        if snapshot.run_id != run_id:
            raise MalformedMessage(f"{cls.__name__}: run_id: is not {run_id}, under whose key it lies")
        return snapshot

    @property
    def is_terminal(self) -> bool:
        return self.status.is_terminal

    @property
    def is_held(self) -> bool:
        """A worker has claimed the run and has neither finished it nor handed it back."""
        return self.worker_id is not None and not self.is_terminal

    def is_held_by(self, worker_instance_id: str, attempt: int) -> bool:
        return not self.is_terminal and self.attempt == attempt and self.worker_instance_id == worker_instance_id

    def claim(
        self,
        *,
        worker_id: str,
        worker_instance_id: str,
        ack_subject: str | None,
        now: float,
        wheels: Sequence[WheelInUse] = (),
    ) -> Self:
        """A worker claims the run: a new attempt begins. A cancel request is kept."""
        self._refuse_if_terminal("claimed")
        return self._with(
            status=self.status if self.status is RunStatus.CANCELLING else RunStatus.RUNNING,
            attempt=max(self.attempt, self.attempt_floor or 0) + 1,
            attempt_floor=None,
            worker_id=worker_id,
            worker_instance_id=worker_instance_id,
            ack_subject=ack_subject,
            tasks={},
            task_records={},
            task_records_truncated=False,
            tasks_truncated=False,
            result_truncated=False,
            start_time=now,
            end_time=None,
            error=None,
            reason=None,
            retry_of_attempt=None,
            not_before=None,
            due_at=self.not_before,
            wheels=list(wheels),
            heartbeat_at=now,
            updated_at=now,
        )

    def heartbeat(
        self,
        *,
        now: float,
        tasks: dict[str, TaskStatus] | None = None,
        task_records: dict[str, Any] | None = None,
        wheels: Sequence[WheelInUse] | None = None,
        ack_subject: str | None = None,
    ) -> Self:
        """The holder is alive; what is given has changed."""
        return self._with_given(
            tasks=tasks,
            task_records=task_records,
            wheels=wheels,
            ack_subject=ack_subject,
            heartbeat_at=now,
            updated_at=now,
        )

    def with_report(
        self,
        *,
        tasks: dict[str, TaskStatus] | None,
        task_records: dict[str, Any] | None,
        task_records_truncated: bool,
        result_truncated: bool,
    ) -> Self:
        """Take the last report of an attempt, if there is one; it stays visible while the run waits for its retry.

        A mark that was set before, with what the snapshot still has, stays.
        """
        return self._with_given(
            tasks=tasks,
            task_records=task_records,
            task_records_truncated=task_records_truncated or None,
            result_truncated=result_truncated or None,
        )

    def with_wheels(self, wheels: Sequence[WheelInUse]) -> Self:
        """The attempt was executed with these wheels."""
        return self._with(wheels=list(wheels))

    def truncated(self, **smaller: Any) -> Self:
        """Replace fields by smaller values, and set their marks where they have one."""
        marks = {f"{name}_truncated" for name in smaller} & RunSnapshot.model_fields.keys()
        return self._with(**smaller, **dict.fromkeys(marks, True))

    def with_recorded(
        self,
        *,
        attempt: int,
        status: RunStatus | None = None,
        reopened: int | None = None,
        updated_at: float | None = None,
    ) -> Self:
        """Take what the ledger has recorded: it counts attempts also for peers' workers, which do not."""
        return self._with_given(attempt=attempt, status=status, reopened=reopened, updated_at=updated_at)

    def skip_attempts(self, count: int) -> Self:
        """Skip the numbers of attempts that may have begun unrecorded, so that none is used again."""
        return self._with(attempt_floor=max(self.attempt, self.attempt_floor or 0) + count)

    def with_lost_attempt(self, lost: Self, *, now: float) -> Self:
        """Add an attempt that this snapshot lacks, because NATS has lost the snapshot that had it.

        Also after the end: the attempt that followed may have been short.
        """
        if self.attempt == lost.attempt or lost.worker_id is None:
            return self
        if any(record.attempt == lost.attempt for record in self.earlier_attempts):
            return self
        [*_, over] = lost._attempts_with(AttemptOutcome.INTERRUPTED, None, now)
        known = sorted([*self.earlier_attempts, over], key=lambda record: record.attempt)
        return self._with(earlier_attempts=known[-_ATTEMPTS_KEPT:], updated_at=now)

    def with_facts_of(self, accepted: Self) -> Self:
        """Take the fields that acceptance fixed from `accepted`, which comes from the ledger."""
        return self._with(**{name: getattr(accepted, name) for name in _FACTS})

    def with_requests_of(self, recorded: Self) -> Self:
        """Apply the requeue or the cancel that callers have asked for and that the ledger has recorded."""
        if self.reopened < recorded.reopened:
            return recorded
        if recorded.status is not RunStatus.CANCELLING or recorded.reopened < self.reopened:
            return self
        assert recorded.cancel_requested_at is not None
        return self.request_cancel(
            by=recorded.cancel_requested_by, now=recorded.cancel_requested_at, reason=recorded.cancel_reason
        )

    def take_back(self, *, now: float, reason: str) -> Self:
        """End the claim of a lost holder: the run waits again or, if a cancel was requested, is CANCELLED."""
        if self.status is RunStatus.CANCELLING:
            return self.finish(RunStatus.CANCELLED, now=now, error=self.error, reason=reason)
        return self.hand_back(now=now, interrupted=True)

    def end_cancelled(self, *, now: float) -> Self:
        """End a run whose cancel was requested; not if a worker holds it, because then the worker ends it."""
        if self.status is not RunStatus.CANCELLING or self.is_held:
            return self
        return self.finish(RunStatus.CANCELLED, now=now)

    def hand_back(self, *, now: float, interrupted: bool) -> Self:
        """The holder is lost or gives up its claim: the run waits again, and its attempt stays counted."""
        self._refuse_if_terminal("handed back")
        outcome = AttemptOutcome.INTERRUPTED if interrupted else AttemptOutcome.HANDED_BACK
        return self._wait_again(outcome, None, now=now, interruptions=self.interruptions + (1 if interrupted else 0))

    def retry_later(self, *, now: float, not_before: float, error: str | None, reason: str | None) -> Self:
        """The flow has failed and is retried: the run waits, and no attempt begins before `not_before`."""
        self._refuse_if_terminal("tried again")
        return self._wait_again(
            AttemptOutcome.FAILED,
            error,
            now=now,
            failures=self.failures + 1,
            retry_of_attempt=self.attempt,
            not_before=not_before,
            error=error,
            reason=reason,
        )

    def reopen(self, *, now: float, not_before: float | None = None) -> Self:
        """Retry an ended run on request, with all its retries; attempt numbers continue."""
        if not self.is_terminal:
            raise IllegalTransition(f"run {self.run_id} is {self.status} and has not ended yet")
        return self._wait_again(
            # An attempt that ended its run has the run's outcome.
            AttemptOutcome(self.status.lower()),
            self.error,
            now=now,
            reopened=self.reopened + 1,
            failures=0,
            interruptions=0,
            end_time=None,
            result=None,
            not_before=not_before,
            deadline_at=None,
            cancel_requested_at=None,
            cancel_requested_by=None,
            cancel_reason=None,
        )

    def request_cancel(self, *, by: str | None, now: float, reason: str | None = None) -> Self:
        """Request cancellation; a second request keeps the first one."""
        if self.is_terminal or self.status is RunStatus.CANCELLING:
            return self
        return self._with(
            status=RunStatus.CANCELLING,
            cancel_requested_at=now,
            cancel_requested_by=by,
            cancel_reason=reason,
            updated_at=now,
        )

    def finish(
        self,
        status: RunStatus,
        *,
        now: float,
        error: str | None = None,
        reason: str | None = None,
        result: Any = None,
    ) -> Self:
        """End the run for good; only `reopen` can make it wait again."""
        self._refuse_if_terminal(f"finished as {status}")
        if not status.is_terminal:
            raise IllegalTransition(f"{status} is no end of a run")
        return self._with(
            status=status,
            error=error,
            reason=reason,
            result=result,
            retry_of_attempt=None,
            failures=self.failures + (1 if reason == DeadLetterReason.EXECUTION_ERROR else 0),
            end_time=now,
            heartbeat_at=now,
            updated_at=now,
            ack_subject=None,
        )

    def _wait_again(self, outcome: AttemptOutcome, attempt_error: str | None, *, now: float, **changes: Any) -> Self:
        status = self.status if self.status is RunStatus.CANCELLING else RunStatus.PENDING
        return self._with(
            status=status,
            worker_id=None,
            worker_instance_id=None,
            ack_subject=None,
            wheels=[],
            updated_at=now,
            earlier_attempts=self._attempts_with(outcome, attempt_error, now),
            **changes,
        )

    def _with(self, **changes: Any) -> Self:
        return self.model_copy(update=changes)

    def _with_given(self, **changes: Any) -> Self:
        return self._with(**{name: value for name, value in changes.items() if value is not None})

    def _attempts_with(self, outcome: AttemptOutcome, error: str | None, now: float) -> list[AttemptRecord]:
        """The earlier attempts with the current one, if there is one, as the last."""
        if self.worker_id is None:
            return self.earlier_attempts
        over = AttemptRecord(
            attempt=self.attempt,
            outcome=outcome,
            worker_id=self.worker_id,
            start_time=self.start_time,
            end_time=self.end_time or now,
            error=error[:_LONGEST_ATTEMPT_ERROR] if error else None,
            wheels=self.wheels,
        )
        return [*self.earlier_attempts, over][-_ATTEMPTS_KEPT:]

    def _refuse_if_terminal(self, verb: str) -> None:
        if self.is_terminal:
            raise IllegalTransition(f"run {self.run_id} is {self.status} and cannot be {verb}")

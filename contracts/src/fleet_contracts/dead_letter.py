"""The dead letter: why a job or a run failed for good (appendix E)."""

from enum import StrEnum

from .messages import Message


class DeadLetterReason(StrEnum):
    INVALID_JOB = "invalid_job"
    FLOW_NOT_FOUND = "flow_not_found"
    EXECUTION_ERROR = "execution_error"
    # The run of the job has no snapshot: its submit was answered with an error and withdrawn.
    RUN_NOT_FOUND = "run_not_found"
    # A workflow file names a function, or refers to a variable, that the worker does not allow.
    CALLABLE_NOT_ALLOWED = "callable_not_allowed"
    REFERENCE_NOT_ALLOWED = "reference_not_allowed"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    # The job reached the queue's limit of deliveries, and the run did not end.
    DELIVERIES_EXHAUSTED = "deliveries_exhausted"


class DeadLetter(Message):
    timestamp: float
    reason: str
    error: str | None = None
    run_id: str | None = None
    flow_name: str | None = None
    tag: str | None = None
    tags: list[str] | None = None
    worker_id: str | None = None
    num_delivered: int | None = None
    subject: str | None = None
    attempt: int | None = None
    tenant_id: str | None = None

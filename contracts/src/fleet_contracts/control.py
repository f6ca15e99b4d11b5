"""Control messages to a worker: hints to read KV at once; KV remains the source of truth."""

from enum import StrEnum

from pydantic import Field

from .job import Job
from .messages import Message, is_missing


class ControlKind(StrEnum):
    # Read the snapshot of a run: its cancellation was requested.
    CANCEL = "cancel"
    # Read the worker's registry record: an operator has changed it.
    RECORD = "record"
    # Take this job over from a worker that does not offer its flow.
    JOB = "job"
    # A liveness check; the answer is the instance id.
    PING = "ping"


class Control(Message):
    kind: ControlKind
    # CANCEL only.
    run_id: str | None = None
    # JOB only: the job and its delivery.
    job: Job | None = Field(None, exclude_if=is_missing)
    ack_subject: str | None = Field(None, exclude_if=is_missing)
    num_delivered: int | None = Field(None, exclude_if=is_missing)

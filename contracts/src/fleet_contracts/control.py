"""Control messages to a worker: hints to read KV at once; KV remains the source of truth."""

from enum import StrEnum

from pydantic import Field

from .declined import Declined
from .job import Job
from .messages import Message, is_missing

# A runner is free, and is kept for the job for a moment.
JOB_WANTED = b"wanted"
JOB_TAKEN = b"taken"
# The worker stops, is drained or has no free runner.
JOB_REFUSED = b"refused"


class ControlKind(StrEnum):
    # Read the snapshot of a run: its cancellation was requested.
    CANCEL = "cancel"
    # Read the worker's registry record: an operator has changed it.
    RECORD = "record"
    # A worker that does not offer the flow has this job to hand over; the answer is JOB_WANTED or JOB_REFUSED.
    OFFER = "offer"
    # Take this job over; the answer is JOB_TAKEN or JOB_REFUSED.
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
    # OFFER only. A worker without a free runner refuses; within this time it sends the request back when it has one.
    offer: Declined | None = Field(None, exclude_if=is_missing)
    offered_seconds: float | None = Field(None, exclude_if=is_missing)

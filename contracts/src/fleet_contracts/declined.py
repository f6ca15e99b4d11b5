"""A worker's request to runs-api about a job whose flow it does not offer, and the answer."""

from enum import StrEnum

from pydantic import Field

from .messages import Message, is_missing


class Declined(Message):
    run_id: str
    flow_name: str
    # The queue that the job came from, and the delivery, for a worker that takes it over.
    tag: str
    ack_subject: str
    num_delivered: int
    # Of the worker that asks: its own broken sources and the flows that it knows.
    reason: str
    # Whether it keeps the job when told to ask later; else the job is to go to the end of the queue.
    has_room: bool = True
    # When the worker loaded the flows that it looked into: what it loads later it may be able to execute.
    loaded_at: float | None = Field(None, exclude_if=is_missing)
    # True of a worker that was offered this job and has room for it now: it has not declined it, but wants it.
    is_wanted: bool | None = Field(None, exclude_if=is_missing)


class DeclinedDecision(StrEnum):
    # Another worker was handed the delivery, or the job was queued again: do not answer it.
    HANDED_OVER = "handed_over"
    # A live worker offers the flow but has no free runner, or the flow may still come: keep the job and ask again.
    LATER = "later"
    # Nobody offers the flow: end the run as flow_not_found. Without an error: claim the run as any other.
    NOT_FOUND = "not_found"


class DeclinedAnswer(Message):
    decision: DeclinedDecision
    retry_seconds: float = 0.0
    # NOT_FOUND only: the sentence that the run ends with.
    error: str | None = None

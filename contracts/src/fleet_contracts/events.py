"""The events of a run, in order: state changes and the output of its tasks."""

from enum import StrEnum

from pydantic import Field

from .messages import Message, is_missing


class EventKind(StrEnum):
    RUN = "run"
    TASK = "task"
    LOG = "log"


class RunEvent(Message):
    at: float
    kind: EventKind
    # RUN and TASK: the state entered. LOG: None.
    status: str | None = None
    task: str | None = None
    # LOG only.
    stream: str | None = None
    text: str | None = None
    # LOG only: the level's name of a message that was logged; missing: it was printed.
    level: str | None = Field(None, exclude_if=is_missing)


class RunEvents(Message):
    """Events travel in batches, one message per flush, on the run's own subject."""

    run_id: str
    attempt: int = Field(ge=0)
    # Counts the batches of one attempt from 0, so that a reader sees gaps and drops repeats.
    batch: int = Field(ge=0)
    worker_id: str | None = None
    events: list[RunEvent]

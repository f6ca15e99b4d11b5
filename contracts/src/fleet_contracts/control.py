"""Control messages to a worker: hints to read KV at once; KV remains the source of truth."""

from enum import StrEnum

from .messages import Message


class ControlKind(StrEnum):
    # Read the snapshot of a run: its cancellation was requested.
    CANCEL = "cancel"
    # Read the worker's registry record: an operator has changed it.
    RECORD = "record"
    # A liveness check; the answer is the instance id.
    PING = "ping"


class Control(Message):
    kind: ControlKind
    # CANCEL only.
    run_id: str | None = None

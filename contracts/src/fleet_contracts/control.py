"""What is told to a worker at once: a hint to look at the snapshot now, which remains the only truth."""

from enum import StrEnum

from .messages import Message


class ControlKind(StrEnum):
    # Look at the snapshot of a run: somebody wants it cancelled.
    CANCEL = "cancel"
    # Look at your registry record: an operator has changed it.
    RECORD = "record"
    # Say that you are there; the answer is your instance id.
    PING = "ping"


class Control(Message):
    kind: ControlKind
    # CANCEL only.
    run_id: str | None = None

"""What is told to a worker at once: a hint to look at the snapshot now, which remains the only truth."""

from enum import StrEnum

from .messages import Message


class ControlKind(StrEnum):
    CANCEL = "cancel"


class Control(Message):
    kind: ControlKind
    run_id: str

"""The base class of all messages: readers ignore unknown fields."""

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError


class MalformedMessage(ValueError):
    """The bytes are not a valid message of this kind."""


def is_missing(value: object) -> bool:
    """For `exclude_if` of fields that are omitted while they are None."""
    return value is None


class Message(BaseModel):
    # NaN and infinity cannot be ordered as times, nor stored in the ledger.
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    def encode(self) -> bytes:
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "body"
        # Raised without its cause: pydantic's text quotes the message, params included.
        raise MalformedMessage(f"{cls.__name__}: {place}: {first['msg']}")


class Document(Message):
    """A message that is read, changed and written back: fields we do not know survive the round trip."""

    model_config = ConfigDict(extra="allow")

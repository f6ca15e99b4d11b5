"""Requests and responses of wheels-api (appendix D)."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, Field

from fleet_contracts.wheel import WheelAction
from fleet_kit.nats.stores.objects import StoredObject

from .names import FILE_NAME_PATTERN, LONGEST_FILE_NAME
from .registry import tags_of

FileName = Annotated[str, Field(pattern=FILE_NAME_PATTERN, max_length=LONGEST_FILE_NAME)]


class Wheel(BaseModel):
    """A registered wheel."""

    name: str
    size_bytes: int
    bucket: str
    nuid: str
    modified: float
    sha256_hex: str | None
    tags: list[str]

    @classmethod
    def of(cls, stored: StoredObject, bucket: str) -> Self:
        return cls(
            name=stored.name,
            size_bytes=stored.size,
            bucket=bucket,
            nuid=stored.nuid,
            modified=stored.modified,
            sha256_hex=stored.sha256_hex,
            tags=tags_of(stored),
        )


class Deleted(BaseModel):
    name: str
    deleted: bool


class HistoryQuery(BaseModel):
    limit: int = Field(100, ge=1, le=500)
    wheel_name: FileName | None = None
    action: WheelAction | None = None
    cursor: str | None = Field(
        None, pattern=r"^[1-9][0-9]{0,17}$", description="of the header `X-Next-Cursor` of the page before"
    )

    @property
    def before(self) -> int | None:
        return int(self.cursor) if self.cursor else None


UPLOAD_FORM: dict[str, Any] = {
    "type": "object",
    "required": ["wheel"],
    "additionalProperties": False,
    "properties": {
        "wheel": {"type": "string", "format": "binary", "description": "the wheel, under its own file name"},
        "tags": {
            "type": "string",
            "description": "tags of workers, separated by commas; none: for every worker",
            "maxLength": 2000,
            "pattern": r"^(\s*[A-Za-z0-9_-]{0,64}\s*,)*\s*[A-Za-z0-9_-]{0,64}\s*$",
        },
        "replace": {
            "type": "boolean",
            "default": True,
            "description": "kept in the history; the version decides what is taken",
        },
    },
}

"""Wheels: the headers of a registered wheel, the workers it is for, and the history of the registry."""

from collections.abc import Iterable
from enum import StrEnum

from .messages import Document, Message

# The object's header that holds the tags, separated by commas; none or empty: the wheel is for every worker.
WHEEL_TAGS_HEADER = "x-pyoco-wheel-tags"
# The event that led to the object's state, as JSON: an entry missing in the history can be restored from it.
WHEEL_EVENT_HEADER = "x-pyoco-wheel-event"


def join_tags(tags: Iterable[str]) -> str:
    return ",".join(tags)


def split_tags(text: str | None) -> list[str]:
    return [tag for part in (text or "").split(",") if (tag := part.strip())]


def is_meant_for(worker_tags: Iterable[str], wheel_tags: Iterable[str]) -> bool:
    """One tag in common is enough; a wheel without tags is for every worker."""
    wanted = set(wheel_tags)
    return not wanted or not wanted.isdisjoint(worker_tags)


class WheelAction(StrEnum):
    UPLOAD = "upload"
    DELETE = "delete"


class WheelActor(Message):
    tenant_id: str | None = None
    api_key_id: str | None = None


class WheelSource(Message):
    remote_addr: str | None = None
    x_forwarded_for: str | None = None
    x_real_ip: str | None = None
    user_agent: str | None = None
    host: str | None = None
    scheme: str | None = None


class WheelEvent(Document):
    """One entry of the history."""

    event_id: str
    occurred_at: float
    action: WheelAction
    wheel_name: str
    tags: list[str] = []
    size_bytes: int | None = None
    sha256_hex: str | None = None
    replace: bool | None = None
    actor: WheelActor = WheelActor()
    source: WheelSource = WheelSource()


class WheelInUse(Message):
    """A wheel that a run could import from."""

    name: str
    sha256_hex: str | None = None


class InstalledWheel(Document):
    """A wheel in a worker's environment. Peers describe theirs in words of their own."""

    name: str = ""
    package: str = ""
    version: str = ""
    nuid: str = ""
    sha256_hex: str | None = None
    tags: list[str] = []


class SkippedWheel(Document):
    """A wheel that is meant for a worker and cannot be installed there."""

    name: str = ""
    reason: str = ""

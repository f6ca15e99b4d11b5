"""Server-sent events, and where to go on after a lost connection."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import FleetError, Unavailable, Unreachable


@dataclass(frozen=True)
class Event:
    # The id to go on after; empty if the event has none.
    id: str
    event: str
    # Parsed if it is JSON, as all events of the fleet are.
    data: Any

    @classmethod
    def parse(cls, id: str, event: str, data: str) -> "Event":
        try:
            return cls(id, event, json.loads(data))
        except ValueError:
            return cls(id, event, {"raw": data})


@dataclass
class Resumption:
    """Where a stream goes on when its connection is lost, and how often in a row it may be."""

    last_event_id: str | None = None
    attempts: int = 6
    failures: int = field(default=0, init=False)

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Last-Event-ID": self.last_event_id} if self.last_event_id else {}

    def saw(self, event: Event) -> None:
        self.failures = 0
        if event.id:
            self.last_event_id = event.id

    def goes_on_after(self, error: FleetError) -> bool:
        self.failures += 1
        return isinstance(error, Unavailable | Unreachable) and self.failures < self.attempts


def only(name: str, events: Iterator[Event]) -> Iterator[Any]:
    return (event.data for event in events if event.event == name)

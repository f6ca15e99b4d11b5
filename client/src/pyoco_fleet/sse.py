"""Server-sent events, and where to go on after a lost connection."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
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


class Resumption:
    """Where a stream goes on when its connection is lost, and since when there was no event."""

    def __init__(self, last_event_id: str | None, deadline: float | None) -> None:
        self.last_event_id = last_event_id
        self.failures = 0
        self._silent_since: float | None = None
        self._deadline = deadline

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Last-Event-ID": self.last_event_id} if self.last_event_id else {}

    @property
    def seconds_left(self) -> float:
        return math.inf if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def saw(self, event: Event) -> None:
        self.failures, self._silent_since = 0, None
        if event.id:
            self.last_event_id = event.id

    def goes_on_after(self, error: FleetError, *, give_up_after_seconds: float) -> bool:
        """Whether to connect again: not when the time is over. Raises the error when it is one for good.

        It is as well if the server wants to be left alone for longer than that.
        """
        if not isinstance(error, Unavailable | Unreachable):
            raise error
        now = time.monotonic()
        self.failures += 1
        self._silent_since = self._silent_since or now
        if self.seconds_left <= 0:
            return False
        if max(now - self._silent_since, error.retry_after or 0.0) >= give_up_after_seconds:
            raise error
        return True

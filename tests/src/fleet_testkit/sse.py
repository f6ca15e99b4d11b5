"""Read server-sent events one by one."""

import json
from typing import Any

import httpx

Event = dict[str, Any]


class Feed:
    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()

    async def next(self) -> Event | None:
        """The next event; None when the stream has ended."""
        event: Event = {}
        async for line in self._lines:
            if not line:
                return event
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value
        return None

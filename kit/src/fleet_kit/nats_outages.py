"""What an outage of NATS looks like: what the library raises then, how long it has lasted, how often it is told."""

import asyncio
import logging
import time

import nats.errors
import nats.js.errors

# What the client library raises when the server, the network or JetStream is away.
OUTAGES = (
    nats.errors.Error,
    nats.js.errors.ServiceUnavailableError,
    nats.js.errors.NoStreamResponseError,
    OSError,
    TimeoutError,
    asyncio.TimeoutError,
)
_REPEAT_COMPLAINT_SECONDS = 30.0


class Silence:
    """Since when JetStream has answered no write at all, not even with a refusal."""

    def __init__(self, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._since: float | None = None

    def end(self) -> None:
        self._since = None

    def note(self, *, since: float, now: float) -> bool:
        """A write was not taken. True if none has been for too long: it may be the server that we are on."""
        self._since = since if self._since is None else min(self._since, since)
        if now - self._since < self._most_seconds:
            return False
        self._since = None
        return True


class Complaints:
    """While NATS is away the same complaint comes four times a second: it is told now and then."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def level(self, text: str) -> int:
        now = time.monotonic()
        if self._told.get(text, -_REPEAT_COMPLAINT_SECONDS) >= now - _REPEAT_COMPLAINT_SECONDS:
            return logging.DEBUG
        self._told = {text: now}
        return logging.WARNING

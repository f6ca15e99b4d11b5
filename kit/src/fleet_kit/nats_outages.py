"""What an outage of NATS looks like: what the library raises then, how long it has lasted."""

import asyncio

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

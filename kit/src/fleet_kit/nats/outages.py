"""Detects outages of NATS: errors of the library, unanswered writes, a full disk."""

import asyncio
import time
from typing import Any

import nats.errors
import nats.js.errors

from ..errors import NatsUnavailable

# Errors of the client library when the server, the network or JetStream is unavailable.
OUTAGES = (
    nats.errors.Error,
    nats.js.errors.ServiceUnavailableError,
    nats.js.errors.NoStreamResponseError,
    OSError,
    TimeoutError,
    asyncio.TimeoutError,
)

# JetStream's codes for a server whose resources are used up.
_NO_RESOURCES = (10023, 10047)
# How long a full disk is reported after a refused write, unless a later write succeeds.
_FULL_SECONDS = 30.0


class NoSpaceLeft(NatsUnavailable):
    """No space is left on the disk of NATS; free some and try again."""

    @staticmethod
    def is_meant_by(error: dict[str, Any]) -> bool:
        return error.get("err_code") in _NO_RESOURCES or "no space left" in error.get("description", "")


class StorageFull:
    """Whether JetStream refused the latest write because its disk is full."""

    def __init__(self) -> None:
        self._until = float("-inf")

    def note(self, *, is_full: bool) -> None:
        self._until = time.monotonic() + _FULL_SECONDS if is_full else float("-inf")

    @property
    def is_noted(self) -> bool:
        return time.monotonic() < self._until


class WriteSilence:
    """Measures how long JetStream has answered no write at all, not even with a refusal."""

    def __init__(self, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._since: float | None = None

    def end(self) -> None:
        self._since = None

    def note(self, *, since: float, now: float) -> bool:
        """Record an unanswered write. True if none was answered for too long: our server may be the cause."""
        self._since = since if self._since is None else min(self._since, since)
        if now - self._since < self._most_seconds:
            return False
        self._since = None
        return True

"""The timeout of requests to NATS, which allows for pauses of this process."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

# A timer this late means that this process was paused (a laptop slept, the machine was busy), not that NATS is
# silent.
_STALL_SECONDS = 0.25
# The extra time after a pause: answers received meanwhile are read, and NATS, perhaps paused as well, sends the rest.
_LONGER_SECONDS = 1.0


class RequestTimeouts:
    """Times out futures that all have the same timeout, in the order of their arrival, with one timer.

    A pause of this process must not be taken for silence of NATS: futures that became due during the pause get some
    extra time, once.
    """

    def __init__(self, seconds: float, end: Callable[[str, float], None]) -> None:
        """`end` is called for every future, done or not, with its token and the time at which the wait began."""
        self._seconds = seconds
        self._end = end
        self._waiting: deque[tuple[float, str, asyncio.Future[Any]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._has_waited_longer = False

    def watch(self, token: str, future: asyncio.Future[Any]) -> None:
        loop = future.get_loop()
        self._end_due(0.0)
        self._waiting.append((loop.time() + self._seconds, token, future))
        if self._timer is None:
            self._ring_at(self._waiting[0][0], loop)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ring_at(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_at(when, self._ring, when, loop)

    def _ring(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        if now - when > _STALL_SECONDS and not self._has_waited_longer:
            self._has_waited_longer = True
            self._ring_at(now + _LONGER_SECONDS, loop)
            return
        self._has_waited_longer = False
        self._end_due(now)
        self._timer = None
        if self._waiting:
            self._ring_at(self._waiting[0][0], loop)

    def _end_due(self, now: float) -> None:
        """End the oldest futures, as far as they are done or due."""
        waiting = self._waiting
        while waiting and (waiting[0][2].done() or waiting[0][0] <= now):
            until, token, _ = waiting.popleft()
            self._end(token, until - self._seconds)

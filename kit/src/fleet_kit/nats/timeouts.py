"""How long an answer of NATS is waited for."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

# A timer that rings this late tells of this process, not of NATS: a laptop slept, a machine gave its time to others.
_STOOD_STILL_SECONDS = 0.25
# In this time what has come meanwhile is read, and NATS, which may have stood still as well, answers the rest.
_A_MOMENT_SECONDS = 1.0


class RequestTimeouts:
    """Ends the waiting for futures that all may take equally long: in the order of their coming, by one timer.

    A process that stood still does not take its own pause for the silence of NATS: whoever was due meanwhile is
    given a moment more, once.
    """

    def __init__(self, seconds: float, end: Callable[[str, float], None]) -> None:
        """`end` is called for every future, done or not, with its token and since when it was waited for."""
        self._seconds = seconds
        self._end = end
        self._waiting: deque[tuple[float, str, asyncio.Future[Any]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._gave_a_moment = False

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
        if now - when > _STOOD_STILL_SECONDS and not self._gave_a_moment:
            self._gave_a_moment = True
            self._ring_at(now + _A_MOMENT_SECONDS, loop)
            return
        self._gave_a_moment = False
        self._end_due(now)
        self._timer = None
        if self._waiting:
            self._ring_at(self._waiting[0][0], loop)

    def _end_due(self, now: float) -> None:
        """The oldest, as far as they are done or may take no longer."""
        waiting = self._waiting
        while waiting and (waiting[0][2].done() or waiting[0][0] <= now):
            until, token, _ = waiting.popleft()
            self._end(token, until - self._seconds)

"""Waits for a condition with a deadline; the failure names the condition and the last value seen."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

# A look is often a request, so the pause grows with the time already waited.
_SHORTEST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.25
_PAUSE_SHARE = 0.1


def wait_until(look: Callable[[], T], *, within: float = 30.0, what: str = "condition") -> T:
    """Call `look` until it returns something true; AssertionError after `within` seconds."""
    begun = time.monotonic()
    while True:
        seen = look()
        if seen:
            return seen
        time.sleep(_pause_seconds(begun, within, what, seen))


@overload
async def eventually(
    look: Callable[[], Awaitable[T]], *, until: Callable[[T], Any] = ..., within: float = ..., what: str = ...
) -> T: ...


@overload
async def eventually(
    look: Callable[[], T], *, until: Callable[[T], Any] = ..., within: float = ..., what: str = ...
) -> T: ...


async def eventually(
    look: Callable[[], Any], *, until: Callable[[Any], Any] = bool, within: float = 30.0, what: str = "condition"
) -> Any:
    """`wait_until` for coroutines, and until any condition; `look` may be sync or async."""
    begun = time.monotonic()
    while True:
        seen = look()
        if inspect.isawaitable(seen):
            seen = await seen
        if until(seen):
            return seen
        await asyncio.sleep(_pause_seconds(begun, within, what, seen))


def _pause_seconds(begun: float, within: float, what: str, seen: object) -> float:
    waited = time.monotonic() - begun
    if waited > within:
        raise AssertionError(f"{what} did not come true within {within} s; last seen: {seen!r}")
    return min(max(waited * _PAUSE_SHARE, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)

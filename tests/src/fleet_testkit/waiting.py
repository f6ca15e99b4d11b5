"""Wait for a condition with a deadline; the failure says what was waited for and what was last seen."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

_PAUSE_SECONDS = 0.02


def wait_until(look: Callable[[], T], *, within: float = 30.0, what: str = "condition") -> T:
    """Call `look` until it returns something true; AssertionError after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {within} s; last seen: {seen!r}")
        time.sleep(_PAUSE_SECONDS)


@overload
async def eventually(look: Callable[[], Awaitable[T]], *, within: float = ..., what: str = ...) -> T: ...


@overload
async def eventually(look: Callable[[], T], *, within: float = ..., what: str = ...) -> T: ...


async def eventually(look: Callable[[], Any], *, within: float = 30.0, what: str = "condition") -> Any:
    """The same for coroutines: `look` may be sync or async."""
    deadline = time.monotonic() + within
    while True:
        seen = look()
        if inspect.isawaitable(seen):
            seen = await seen
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {within} s; last seen: {seen!r}")
        await asyncio.sleep(_PAUSE_SECONDS)

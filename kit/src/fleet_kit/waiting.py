"""Waits for an event, but not for ever."""

import asyncio


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set; False if it is not set in time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False

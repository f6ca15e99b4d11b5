"""Parts that work in rounds for as long as the service runs."""

import asyncio
import logging
from abc import ABC, abstractmethod

from fleet_kit.logs.rate_limit import RateLimitedLog
from fleet_kit.waiting import is_set_within

from .resources import Part, Resources


class Loop(Part, ABC):
    """No round begins while NATS is away. One that fails is logged (rate-limited), and the next one tries again."""

    # What is logged of a round that failed.
    interruption: str
    pause_seconds = 1.0

    def __init__(self, shared: Resources) -> None:
        super().__init__(shared)
        self._awake = asyncio.Event()
        self._failures = RateLimitedLog()

    @abstractmethod
    async def round(self) -> float:
        """Do what there is to do; returns the seconds until the next round."""

    def wake(self) -> None:
        """Begin the next round now."""
        self._awake.set()

    async def run(self, stop: asyncio.Event) -> None:
        logger = logging.getLogger(type(self).__module__)
        while not stop.is_set():
            seconds = self.pause_seconds
            try:
                if self._link.down_because is None:
                    seconds = await self.round()
                    self._failures.recovered()
            except Exception as error:  # noqa: BLE001 - logged; the next round retries
                self._failures.log(logger, self.interruption, error)
            if seconds and await is_set_within(self._awake, seconds):
                self._awake.clear()

"""Drain: while an operator asks for it, the worker pulls no new jobs."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fleet_contracts.log_events import LogEvent

Work = Callable[[], Coroutine[Any, Any, None]]

logger = logging.getLogger(__name__)


class Draining:
    def __init__(self) -> None:
        self._wanted = asyncio.Event()
        self._unwanted = asyncio.Event()
        self._unwanted.set()

    @property
    def is_wanted(self) -> bool:
        return self._wanted.is_set()

    def follow(self, wanted: bool) -> None:
        """Start or end draining, as the registry record now says."""
        if wanted == self.is_wanted:
            return
        if wanted:
            logger.info(
                "draining: what has begun goes on, nothing new is taken", extra={"event": LogEvent.WORKER_DRAINING}
            )
            self._unwanted.clear()
            self._wanted.set()
        else:
            logger.info("draining is over: jobs are taken again", extra={"event": LogEvent.WORKER_RESUMED})
            self._wanted.clear()
            self._unwanted.set()

    async def pull(self, pull: Work, stand_aside: Work) -> None:
        """Run `pull` except while draining, and `stand_aside` when draining starts. Returns when `pull` does."""
        while True:
            await self._unwanted.wait()
            pulling = asyncio.create_task(pull())
            wanted = asyncio.create_task(self._wanted.wait())
            try:
                await asyncio.wait({pulling, wanted}, return_when=asyncio.FIRST_COMPLETED)
                if pulling.done():
                    return pulling.result()
            finally:
                pulling.cancel()
                wanted.cancel()
                await asyncio.gather(pulling, wanted, return_exceptions=True)
            await stand_aside()

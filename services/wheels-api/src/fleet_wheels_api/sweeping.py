"""Periodically repairs what an outage or a crash left behind in the registry."""

import asyncio
import logging

from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.stores.object_writing import ObjectWriter
from fleet_kit.waiting import is_set_within

from .metrics import Metrics
from .registry import Registry

logger = logging.getLogger(__name__)

# The interval while a write is known to be unfinished.
_SOON_SECONDS = 2.0


class Sweeper:
    """Runs in every replica; concurrent sweeps are safe."""

    def __init__(
        self, link: NatsLink, registry: Registry, store: ObjectWriter, metrics: Metrics, *, interval_sec: float
    ) -> None:
        self._link = link
        self._registry = registry
        self._store = store
        self._metrics = metrics
        self._interval_sec = interval_sec
        self._wanted = asyncio.Event()
        self._stopping = False

    async def wake(self) -> None:
        """Sweep now. The link calls this after each connect, because an outage may have left work."""
        self._wanted.set()

    def stop(self) -> None:
        self._stopping = True
        self._wanted.set()

    async def run(self) -> None:
        while not self._stopping:
            if self._link.down_because is None:
                try:
                    await self._sweep()
                except NatsUnavailable as error:
                    logger.warning("could not look after the registry, trying again: %s", error.message)
                except Exception:
                    logger.exception("looking after the registry failed, trying again")
            soon = min(_SOON_SECONDS, self._interval_sec)
            await is_set_within(self._wanted, soon if self._store.has_leftovers else self._interval_sec)
            self._wanted.clear()

    async def _sweep(self) -> None:
        await self._registry.reconcile()
        if swept := await self._store.sweep_orphans():
            self._metrics.swept.inc(swept)
            logger.warning("removed the bytes of %d wheels whose upload was never finished", swept)

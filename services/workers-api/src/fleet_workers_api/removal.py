"""Removes the records of workers that are gone for longer than their TTL."""

import asyncio
import logging
import random
import time

from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.errors import FleetError
from fleet_kit.nats.link import NatsLink

from .registry import Registry

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_SECONDS = 60.0


def is_long_gone(record: WorkerRecord, *, now: float, disconnect_timeout_sec: float, ttl_sec: float) -> bool:
    """Whether the worker has been stopped or silent for longer than the TTL."""
    if record.is_alive(now=now, disconnect_timeout_sec=disconnect_timeout_sec):
        return False
    return now - max(record.last_seen_at, record.stopped_at or 0.0) > ttl_sec


class Removal:
    """Runs in every replica. Removal is a compare-and-set: one replica wins, and a changed record stays."""

    def __init__(self, link: NatsLink, registry: Registry, *, ttl_sec: float) -> None:
        self._link = link
        self._registry = registry
        self._ttl_sec = ttl_sec
        self._markers: dict[str, int] = {}

    async def run(self) -> None:
        """Remove old records periodically; a TTL of 0 keeps them all."""
        if not self._ttl_sec:
            return
        pause = min(_LONGEST_PAUSE_SECONDS, self._ttl_sec / 10)
        while True:
            # Jitter, so that replicas do not run in step.
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311
            try:
                if self._link.down_because is None:
                    await self.tidy()
            except FleetError as error:
                logger.warning("removing old worker records was interrupted: %s", error)
            except Exception:
                logger.exception("removing old worker records failed; the next round tries again")

    async def tidy(self) -> None:
        for record in self._registry.records():
            worker_id = record.worker_id
            if self._is_due(record) and await self._registry.remove(worker_id, self._is_due):
                logger.info("the record of a worker that is long gone was removed", extra={"worker_id": worker_id})
        await self._erase_markers()

    async def _erase_markers(self) -> None:
        """Erase the delete markers of removed records a round later, when every watch has seen them."""
        found = await self._registry.markers()
        for worker_id, revision in found.items():
            if self._markers.get(worker_id) == revision:
                await self._registry.erase(worker_id, up_to=revision)
        self._markers = found

    def _is_due(self, record: WorkerRecord) -> bool:
        return is_long_gone(
            record,
            now=time.time(),
            disconnect_timeout_sec=self._registry.disconnect_timeout_sec,
            ttl_sec=self._ttl_sec,
        )

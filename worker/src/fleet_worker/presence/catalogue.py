"""Publishes the worker's catalogue of flows when it begins and whenever it has changed."""

import asyncio
import logging
import time

from fleet_contracts.catalogue import Catalogue, WorkerCatalogue
from fleet_contracts.names import kv_subject
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink

from ..pool.pool import RunnerPool
from ..settings import WorkerSettings

logger = logging.getLogger(__name__)

_LOOK_INTERVAL_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 10.0


class PublishedCatalogue:
    """The key belongs to this worker alone, so the last write wins.

    A server that knows no catalogues has no bucket for them: then the worker works without.
    """

    def __init__(self, link: NatsLink, settings: WorkerSettings, pool: RunnerPool, *, instance_id: str) -> None:
        self._link = link
        self._settings = settings
        self._pool = pool
        self._instance_id = instance_id
        # What was published last, and why an edit since then is not in it.
        self._published: tuple[Catalogue, str | None] | None = None
        self._loaded: Catalogue | None = None
        self._loaded_at = 0.0
        # Whether it was ever published: runs-api knows of catalogues.
        self.is_known = False

    async def publish(self) -> None:
        """Write it, changed or not: the bucket may have been made anew. After a failure `keep` tries again."""
        catalogue, reload_error = self._pool.catalogue, self._pool.reload_error
        value = WorkerCatalogue(
            worker_id=self._settings.worker_id,
            instance_id=self._instance_id,
            tags=self._settings.tags,
            loaded_at=self.loaded_at,
            catalogue=catalogue,
            reload_error=reload_error,
        )
        self._published = None
        try:
            await self._link.publish(kv_subject(self._settings.flows_kv_bucket, value.worker_id), value.encode())
        except NatsUnavailable as error:
            logger.debug("the catalogue of flows could not be published yet: %s", error)
        else:
            self._published = (catalogue, reload_error)
            self.is_known = True

    @property
    def loaded_at(self) -> float:
        """When the flows were loaded that the runners have now, in unix seconds."""
        if self._pool.catalogue is not self._loaded:
            self._loaded, self._loaded_at = self._pool.catalogue, time.time()
        return self._loaded_at

    async def publish_missing(self) -> None:
        if not self._is_up_to_date:
            await self.publish()

    @property
    def _is_up_to_date(self) -> bool:
        if self._published is None:
            return False
        catalogue, reload_error = self._published
        return catalogue is self._pool.catalogue and reload_error == self._pool.reload_error

    async def keep(self) -> None:
        pause = _LOOK_INTERVAL_SECONDS
        while True:
            if self._link.client.is_connected:
                await self.publish_missing()
            pause = _LOOK_INTERVAL_SECONDS if self._is_up_to_date else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)

"""Deletes the catalogues of workers whose records are gone."""

import logging
import time

from fleet_kit.nats.link import WrongRevision
from fleet_kit.nats.stores.kv import Bucket

from ..live.catalogues import Catalogues
from ..live.workers import FleetView
from ..resources import Part, Resources

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 60.0


class LeftCatalogues(Part):
    def __init__(self, shared: Resources, *, workers: FleetView, catalogues: Catalogues) -> None:
        super().__init__(shared)
        self._workers = workers.mirror
        self._catalogues = catalogues.mirror
        self._bucket = Bucket(shared.link, shared.settings.flows_kv_bucket)
        self._looked_at = float("-inf")
        # Those that had no record at the last look: a worker publishes its catalogue before its record.
        self._suspects: dict[str, bytes] = {}

    async def delete(self) -> None:
        if not (self._workers.is_watching and self._catalogues.is_watching):
            self._suspects = {}
            return
        if time.monotonic() - self._looked_at < _INTERVAL_SECONDS:
            return
        self._looked_at = time.monotonic()
        before = self._suspects
        self._suspects = {
            key: value for key, value in self._catalogues.values.items() if key not in self._workers.values
        }
        for worker_id, value in self._suspects.items():
            if before.get(worker_id) == value:
                await self._delete(worker_id, value)

    async def _delete(self, worker_id: str, value: bytes) -> None:
        entry, revision = await self._bucket.look_up(worker_id, linearizable=True)
        if entry is None or entry.value != value:
            return
        try:
            await self._bucket.delete(worker_id, revision=revision)
        except WrongRevision:
            return  # it has just been published again
        logger.info("the catalogue of worker %s was deleted: its record is gone", worker_id)

"""Retention: removes the snapshots of ended runs from KV, and later the runs from the ledger, in small steps."""

import asyncio
import logging
import time

from fleet_contracts.names import kv_stream

from ..ledger import reads
from ..loop import Loop
from ..resources import Resources
from . import removal
from .left_catalogues import LeftCatalogues

logger = logging.getLogger(__name__)

_PAGE = 200
_LONGEST_PAUSE_SECONDS = 10.0


class Retention(Loop):
    interruption = "tidying was interrupted"

    def __init__(self, shared: Resources, *, left_catalogues: LeftCatalogues) -> None:
        super().__init__(shared)
        self._left_catalogues = left_catalogues
        self.pause_seconds = min(_LONGEST_PAUSE_SECONDS, max(self._settings.runs_kv_retention_sec / 10, 0.1))

    async def round(self) -> float:
        return 0.0 if await self.tidy() else self.pause_seconds

    async def tidy(self) -> bool:
        """One small step of each kind; True if there is more to do right away."""
        released = await self._release_from_kv()
        purged = await self._purge_ledger()
        await self._left_catalogues.delete()
        await self._commits.write(removal.forget_old_keys, time.time() - self._settings.idempotency_key_ttl_sec)
        return _PAGE in (released, purged)

    async def _release_from_kv(self) -> int:
        """Erase the snapshots of runs that ended long enough ago from KV; from then on only the ledger has them."""
        before = time.time() - self._settings.runs_kv_retention_sec
        # Read before the ledger: the snapshot of a run that is reopened later is newer and stays. A snapshot that was
        # written over an end is erased, whatever its revision.
        last = (await self._link.stream_info(kv_stream(self._runs.bucket.name))).state.last_seq
        run_ids = await self._database.fetch(reads.finished_runs(before, in_kv=True, limit=_PAGE))
        await asyncio.gather(*(self._runs.bucket.erase(run_id, up_to=last) for run_id in run_ids))
        if run_ids:
            await self._commits.write(removal.mark_released, run_ids)
        return len(run_ids)

    async def _purge_ledger(self) -> int:
        if not self._settings.runs_retention_sec:
            return 0
        before = time.time() - self._settings.runs_retention_sec
        run_ids = await self._database.fetch(reads.finished_runs(before, in_kv=False, limit=_PAGE))
        if run_ids:
            await self._commits.write(removal.purge, run_ids)
            logger.info("%d runs that ended long ago were removed from the ledger", len(run_ids))
        return len(run_ids)

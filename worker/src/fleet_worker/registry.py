"""The worker's own record in the registry: what it is, what it does, that it lives (appendices F and G)."""

import asyncio
import logging
import time
from typing import Any

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.status import RunStatus, WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.errors import NatsUnavailable
from fleet_kit.kv import Bucket
from fleet_kit.nats import NatsLink, WrongRevision

from .settings import WorkerSettings

logger = logging.getLogger(__name__)

# However many runs come and go: at most so often is the record written.
_WRITE_INTERVAL_SECONDS = 0.25


class Registry:
    """Changes are noted at once and written together; `hidden` belongs to the operators and is kept."""

    def __init__(self, link: NatsLink, settings: WorkerSettings, *, instance_id: str) -> None:
        self._bucket = Bucket(link, settings.workers_kv_bucket)
        self._link = link
        self._heartbeat_seconds = settings.worker_heartbeat_interval_sec
        self._revision = 0
        self._changed = True
        self._written_at = 0.0
        self._runs: dict[str, float] = {}
        # What the next write has to say beside the runs in hand.
        self._news: dict[str, Any] = {}
        now = time.time()
        self._record = WorkerRecord(
            worker_id=settings.worker_id,
            instance_id=instance_id,
            state=WorkerState.IDLE,
            last_seen_at=now,
            last_heartbeat_at=now,
            tags=settings.tags,
            slots=settings.slots,
        )

    def run_started(self, run_id: str) -> None:
        self._runs[run_id] = time.time()
        self._changed = True

    def run_ended(self, run_id: str, status: RunStatus | None) -> None:
        """The run is no longer in hand; `status` is None if it did not end here."""
        started_at = self._runs.pop(run_id, None)
        if status is not None and started_at is not None:
            self._news = {
                "last_run_id": run_id,
                "last_run_status": status.value,
                "last_run_started_at": started_at,
                "last_run_finished_at": time.time(),
            }
        self._changed = True

    async def keep(self) -> None:
        """Write changes and heartbeats for ever."""
        while True:
            due = self._changed or time.monotonic() - self._written_at >= self._heartbeat_seconds
            if due and self._link.down_because is None:
                await self._try_write()
            await asyncio.sleep(_WRITE_INTERVAL_SECONDS)

    async def say_goodbye(self) -> None:
        self._runs.clear()
        self._news |= {
            "state": WorkerState.STOPPED_GRACEFUL,
            "stopped_at": time.time(),
            "stop_reason": "graceful_shutdown",
        }
        await self._try_write()

    async def _try_write(self) -> None:
        try:
            await self._write()
        except NatsUnavailable as error:
            logger.warning("the worker's registry record could not be written: %s", error)
            self._changed = True

    async def _write(self) -> None:
        self._changed = False
        self._written_at = time.monotonic()
        runs = {
            "state": WorkerState.RUNNING if self._runs else WorkerState.IDLE,
            "current_run_id": next(reversed(self._runs), None),
            "current_run_ids": list(self._runs),
        }
        self._record, self._news = self._record.model_copy(update={**runs, **self._news}), {}
        while True:
            now = time.time()
            record = self._record = self._record.model_copy(update={"last_seen_at": now, "last_heartbeat_at": now})
            try:
                self._revision = await self._bucket.update(record.worker_id, record.encode(), revision=self._revision)
            except WrongRevision:
                await self._read_again()
                continue
            return

    async def _read_again(self) -> None:
        """Somebody else has written the record: the API to hide it, or an earlier life of this worker."""
        entry = await self._bucket.get(self._record.worker_id)
        if entry is None:
            self._revision = 0
            return
        self._revision = entry.revision
        try:
            found = WorkerRecord.decode(entry.value)
        except MalformedMessage:
            logger.warning("the worker's registry record was unreadable and is written anew")
            return
        kept = {"hidden": found.hidden, **(found.model_extra or {})}
        if found.instance_id != self._record.instance_id and self._record.last_run_id is None:
            kept |= {
                "last_run_id": found.last_run_id,
                "last_run_status": found.last_run_status,
                "last_run_started_at": found.last_run_started_at,
                "last_run_finished_at": found.last_run_finished_at,
            }
        self._record = self._record.model_copy(update=kept)

"""The registry of workers: their records in memory, from a watch of the bucket; changed by compare-and-set."""

import asyncio
import logging
import time
from collections.abc import Callable

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink, WrongRevision
from fleet_kit.nats.resources import ensure_bucket
from fleet_kit.nats.stores.documents import Documents
from fleet_kit.nats.stores.kv import Bucket, Mirror

from .errors import RecordContended, WorkerNotFound

logger = logging.getLogger(__name__)

# A worker writes its record at most four times a second: so many refusals must have another cause.
_ATTEMPTS = 50
# How long to wait until our own watch delivers what we have written.
_SEEN_SECONDS = 2.0


class Registry:
    def __init__(self, link: NatsLink, bucket: str, *, disconnect_timeout_sec: float, replicas: int = 1) -> None:
        self.disconnect_timeout_sec = disconnect_timeout_sec
        self._link = link
        self._replicas = replicas
        self._bucket = Bucket(link, bucket)
        self._documents = Documents(self._bucket, WorkerRecord)
        self._mirror = Mirror(link, bucket, on_change=self._apply)
        self._records: dict[str, WorkerRecord] = {}
        # Unreadable records that were logged: once each, not at every heartbeat.
        self._unreadable: set[str] = set()
        self._moved = asyncio.Event()
        # Called at every change with the worker's id and its record, None if it was removed.
        self.on_change: Callable[[str, WorkerRecord | None], None] = lambda *_: None

    async def load(self) -> None:
        """Read the whole bucket and watch it. The link calls this after each connect."""
        await ensure_bucket(self._link.jetstream, self._bucket.name, replicas=self._replicas)
        await self._mirror.restart()

    async def stop(self) -> None:
        await self._mirror.stop()

    def records(self) -> list[WorkerRecord]:
        """All readable records; NatsUnavailable while they may be stale."""
        self._link.require()
        return list(self._records.values())

    def record(self, worker_id: str) -> WorkerRecord:
        """The record of a worker; WorkerNotFound if there is none."""
        self._link.require()
        if (record := self._records.get(worker_id)) is None:
            raise WorkerNotFound(worker_id=worker_id)
        return record

    def state_of(self, record: WorkerRecord) -> WorkerState:
        """The effective state now."""
        return record.effective_state(now=time.time(), disconnect_timeout_sec=self.disconnect_timeout_sec)

    async def change(self, worker_id: str, **fields: bool) -> WorkerRecord:
        """Change the operators' fields by compare-and-set; concurrent writes of the worker are kept.

        When this returns, this process serves the record as it was written.
        """
        self.record(worker_id)
        try:
            stored = await self._documents.change(
                worker_id,
                lambda record: None if record is None else record.model_copy(update=fields),
                lenient=True,
                most_tries=_ATTEMPTS,
            )
        except WrongRevision as error:
            raise RecordContended() from error
        if stored is None:
            raise WorkerNotFound(worker_id=worker_id)
        if stored.is_new:
            await self._until_seen(stored.revision)
        return stored.value

    async def remove(self, worker_id: str, is_due: Callable[[WorkerRecord], bool]) -> bool:
        """Remove a record if it is still due; False if it was changed or removed meanwhile."""
        found = await self._documents.read(worker_id, lenient=True)
        if found is None or not is_due(found.value):
            return False
        try:
            await self._bucket.delete(worker_id, revision=found.revision)
        except WrongRevision:
            return False
        return True

    async def markers(self) -> dict[str, int]:
        """The delete markers of removed records, with their revisions."""
        return await self._bucket.markers(besides=self._mirror.values)

    async def erase(self, worker_id: str, *, up_to: int) -> None:
        await self._bucket.erase(worker_id, up_to=up_to)

    async def _until_seen(self, revision: int) -> None:
        try:
            async with asyncio.timeout(_SEEN_SECONDS):
                while self._mirror.revision < revision:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError as error:
            raise NatsUnavailable("NATS does not show what was written; look at the worker again") from error

    def _apply(self, key: str, value: bytes | None) -> None:
        self._moved.set()
        record = None if value is None else self._decode_record(key, value)
        if record is None:
            if self._records.pop(key, None) is not None:
                self.on_change(key, None)
            return
        self._records[key] = record
        self.on_change(key, record)

    def _decode_record(self, key: str, value: bytes) -> WorkerRecord | None:
        try:
            record = WorkerRecord.decode(value)
            if record.worker_id != key:
                raise MalformedMessage(f"the record of {key} says that it is the one of {record.worker_id}")
        except MalformedMessage as error:
            if key not in self._unreadable:
                self._unreadable.add(key)
                logger.warning("left out of the list: %s", error, extra={"worker_id": key})
            return None
        self._unreadable.discard(key)
        return record

"""The registry: every worker's own record, kept in memory from a watch of the bucket."""

import logging

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.kv import Mirror
from fleet_kit.nats import NatsLink
from fleet_kit.resources import ensure_bucket

logger = logging.getLogger(__name__)


class Registry:
    def __init__(self, link: NatsLink, bucket: str) -> None:
        self._link = link
        self._bucket = bucket
        self._mirror = Mirror(link, bucket, on_change=self._apply)
        self._records: dict[str, WorkerRecord] = {}
        # Told once each, not at every heartbeat.
        self._unreadable: set[str] = set()

    async def load(self) -> None:
        """Read the whole bucket and follow it. A hook of the link."""
        await ensure_bucket(self._link.jetstream, self._bucket)
        await self._mirror.restart()

    async def stop(self) -> None:
        await self._mirror.stop()

    def records(self) -> list[WorkerRecord]:
        """Every worker that can be understood; NatsUnavailable while what we know may be out of date."""
        self._link.require()
        return list(self._records.values())

    def _apply(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._records.pop(key, None)
            self._unreadable.discard(key)
            return
        try:
            self._records[key] = WorkerRecord.decode(value)
        except MalformedMessage as error:
            self._records.pop(key, None)
            if key not in self._unreadable:
                self._unreadable.add(key)
                logger.warning("left out of the list: %s", error, extra={"worker_id": key})
            return
        self._unreadable.discard(key)

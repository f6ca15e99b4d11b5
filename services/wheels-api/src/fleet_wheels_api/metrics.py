"""Prometheus metrics of wheels-api: its counters and the size of its store."""

import time
from math import nan

from prometheus_client import CollectorRegistry, Counter, Gauge

from fleet_contracts.names import object_stream
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink

from .registry import Registry

# The store is asked at most once in this time, however many scrape.
_FRESH_SECONDS = 10.0


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.uploads = Counter("pyoco_wheel_uploads", "Wheels that were registered.", registry=registry)
        self.upload_bytes = Counter("pyoco_wheel_upload_bytes", "Their sizes, together.", registry=registry)
        self.deletes = Counter("pyoco_wheel_deletes", "Wheels that were deleted.", registry=registry)
        self.downloads = Counter("pyoco_wheel_downloads", "Wheels that somebody began to fetch.", registry=registry)
        self.swept = Counter(
            "pyoco_wheel_orphans_swept", "Unfinished uploads whose bytes were removed later.", registry=registry
        )
        self.stored = Gauge("pyoco_wheels_stored", "Wheels in the registry.", registry=registry)
        self.stored_bytes = Gauge(
            "pyoco_wheel_store_bytes", "What the store takes on NATS's disk.", registry=registry
        )


class StoreGauges:
    def __init__(self, link: NatsLink, registry: Registry, metrics: Metrics, *, bucket: str) -> None:
        self._link = link
        self._registry = registry
        self._metrics = metrics
        self._stream = object_stream(bucket)
        self._asked_at = float("-inf")

    async def refresh(self) -> None:
        """Ask the store for its size; NaN while NATS is unavailable."""
        if time.monotonic() - self._asked_at < _FRESH_SECONDS:
            return
        try:
            self._link.require()
            self._metrics.stored.set(len(await self._registry.wheels()))
            self._metrics.stored_bytes.set((await self._link.stream_info(self._stream)).state.bytes)
            self._asked_at = time.monotonic()
        except NatsUnavailable:
            self._metrics.stored.set(nan)
            self._metrics.stored_bytes.set(nan)

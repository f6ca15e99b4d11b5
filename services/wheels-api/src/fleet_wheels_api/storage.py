"""The object store of the wheels and the bucket of their history."""

from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.resources import ensure_bucket, ensure_object_store

from .settings import Settings


class Storage:
    def __init__(self, link: NatsLink, settings: Settings) -> None:
        self._link = link
        self._wheels = settings.wheel_object_store_bucket
        self._history = settings.wheel_history_kv_bucket
        self._history_ttl_sec = settings.wheel_history_ttl_sec
        self._replicas = settings.nats_replicas

    async def ensure(self) -> None:
        """Create the store and the bucket if missing. The link calls this after each connect."""
        js, replicas = self._link.jetstream, self._replicas
        await ensure_object_store(js, self._wheels, replicas=replicas)
        await ensure_bucket(js, self._history, ttl_sec=self._history_ttl_sec, replicas=replicas)

"""A KV bucket that tests read and write without caring for revisions."""

from fleet_contracts.names import kv_subject
from fleet_kit.nats.link import WrongRevision
from fleet_kit.nats.stores import kv


class Bucket(kv.Bucket):
    async def get(self, key: str, *, linearizable: bool = False) -> kv.Entry | None:
        entry, _ = await self.look_up(key, linearizable=linearizable)
        return entry

    async def put(self, key: str, value: bytes) -> int:
        return (await self._link.publish(kv_subject(self.name, key), value)).sequence

    async def create(self, key: str, value: bytes) -> int:
        """Write a key that must not exist; a deleted key counts as missing."""
        entry, revision = await self.look_up(key)
        if entry is not None:
            raise WrongRevision(f"{key} exists already")
        return await self.update(key, value, revision=revision)

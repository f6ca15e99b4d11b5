"""The snapshots of runs in KV, and the one way to change them."""

import asyncio
from dataclasses import replace

from fleet_contracts.snapshot import RunSnapshot
from fleet_kit.nats.link import Ack, NatsLink
from fleet_kit.nats.stores.documents import Documents, Stored
from fleet_kit.nats.stores.kv import Bucket


class RunStore(Documents[RunSnapshot]):
    def __init__(self, link: NatsLink, bucket: str) -> None:
        super().__init__(Bucket(link, bucket), RunSnapshot)

    def decode(self, key: str, data: bytes) -> RunSnapshot:
        return RunSnapshot.decode_of(key, data)

    async def create_nowait(self, first: RunSnapshot) -> "asyncio.Future[Ack]":
        """Write the first snapshot of a run. The acknowledgement is a WrongRevision if KV knows the run."""
        return await self.bucket.update_nowait(first.run_id, first.encode(), revision=0)

    async def announce(self, recorded: RunSnapshot) -> Stored[RunSnapshot]:
        """Write the ledger's snapshot of a run, or apply what was asked for in it to the one that KV has.

        A snapshot that KV has already is newer, except that the ledger knows first of a requeue and of a cancel.
        """

        def merge(there: RunSnapshot | None) -> RunSnapshot:
            if there is None or (asked := there.with_requests_of(recorded)) is recorded:
                return recorded
            return there if asked is there else asked.with_facts_of(recorded)

        stored = await self.change(recorded.run_id, merge, lenient=True)
        assert stored is not None
        return replace(stored, value=stored.value.with_facts_of(recorded))

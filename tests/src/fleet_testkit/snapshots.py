"""Reads and changes snapshots in KV, as runs-api or a worker would."""

from collections.abc import Callable

from fleet_contracts.snapshot import RunSnapshot
from fleet_kit.nats.link import WrongRevision

from .buckets import Bucket


async def read_snapshot(runs: Bucket, run_id: str) -> RunSnapshot:
    entry = await runs.get(run_id)
    assert entry is not None
    return RunSnapshot.decode(entry.value)


async def change_snapshot(runs: Bucket, run_id: str, change: Callable[[RunSnapshot], RunSnapshot]) -> int:
    """Change the snapshot by compare-and-set, again if another writer was first; return its new revision."""
    while True:
        entry = await runs.get(run_id)
        assert entry is not None
        try:
            return await runs.update(
                run_id, change(RunSnapshot.decode(entry.value)).encode(), revision=entry.revision
            )
        except WrongRevision:
            continue

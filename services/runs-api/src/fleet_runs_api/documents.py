"""A run as the ledger's documents tell it, for when KV cannot."""

import time
from typing import Any

from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus


def snapshot_of(row: Any) -> RunSnapshot:
    """The last snapshot seen; before the first, what acceptance alone says."""
    if row.snapshot is not None:
        return RunSnapshot.decode(row.snapshot.encode())
    job = Job.decode(row.job.encode())
    return RunSnapshot.pending(job, now=row.updated_at).model_copy(
        update={"status": RunStatus(row.status), "attempt": row.attempt}
    )


def waiting_snapshot_of(row: Any) -> RunSnapshot:
    """The run as it waits for its next attempt: whoever held it when it was last seen holds it no more."""
    snapshot = snapshot_of(row)
    now = time.time()
    if snapshot.is_held:
        snapshot = snapshot.hand_back(now=now, interrupted=True)
    return snapshot.model_copy(update={"attempt": max(snapshot.attempt, row.attempt), "updated_at": now})

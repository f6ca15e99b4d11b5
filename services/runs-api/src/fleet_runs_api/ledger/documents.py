"""Builds the snapshot of a run from the ledger: from its job and, if there is one, the last snapshot seen in KV."""

import time
from dataclasses import dataclass
from typing import Self

from fleet_contracts.job import Job
from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_contracts.snapshot import RunSnapshot

from .rows import Kind, RunRow
from .sql.prepared import updating
from .tables import documents as _documents

# The last snapshot that was seen of a run.
KEEP_SNAPSHOT = updating(_documents, ("snapshot",), keys=("run_id",))


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to accept and to send."""

    job: Job
    # The job as it is stored and sent.
    payload: bytes
    # The snapshot that must be in KV before the job is sent.
    snapshot: RunSnapshot

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls(job, job.encode(), RunSnapshot.pending(job, now=job.submitted_at))

    @classmethod
    def of_row(cls, row: RunRow) -> Self:
        """The run as it was accepted, from the ledger."""
        job = Job.decode(payload := row.job.encode())
        return cls(job, payload, RunSnapshot.pending(job, now=job.submitted_at))

    @property
    def kind(self) -> Kind:
        return Kind(self.job.tenant_id or ANONYMOUS_TENANT, self.job.flow_name, self.job.tag)


def snapshot_of(row: RunRow) -> RunSnapshot:
    """The last snapshot seen, with the accepted facts; before the first one, a snapshot made from the job."""
    pending = RunSnapshot.pending(Job.decode(row.job.encode()), now=row.updated_at)
    if row.snapshot is not None:
        return RunSnapshot.decode(row.snapshot.encode()).with_facts_of(pending)
    return pending.with_recorded(status=row.known.status, attempt=row.known.attempt)


def waiting_snapshot_of(row: RunRow) -> RunSnapshot:
    """The run as it waits for its next attempt: without the holder of the last snapshot seen."""
    snapshot = without_holder(snapshot_of(row))
    return snapshot.with_recorded(attempt=max(snapshot.attempt, row.known.attempt), updated_at=time.time())


def without_holder(snapshot: RunSnapshot) -> RunSnapshot:
    return snapshot.hand_back(now=time.time(), interrupted=True) if snapshot.is_held else snapshot

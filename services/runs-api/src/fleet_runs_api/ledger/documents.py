"""Builds the snapshot of a run from the ledger: from its job and, if there is one, the last snapshot seen in KV."""

import time
from dataclasses import dataclass
from typing import Any, Self

from fleet_contracts.job import Job
from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from .prepared import Updating
from .tables import documents as _documents

# Fields that never change after acceptance. Times are not among them: a retry has a new start, a requeue no deadline.
_FACTS = {
    "run_id", "flow_name", "params", "tag", "tags", "tenant_id", "api_key_id", "workflow_yaml_sha256",
    "workflow_yaml_bytes", "submitted_at", "retry", "rerun_of", "trace_id",
}  # fmt: skip

# The last snapshot that was seen of a run.
KEEP_SNAPSHOT = Updating(_documents, ("snapshot",), keys=("run_id",))


def with_facts_of(source: RunSnapshot, snapshot: RunSnapshot) -> RunSnapshot:
    """The snapshot with the fields that acceptance fixed taken from `source`, which comes from the ledger."""
    return snapshot.model_copy(update={name: getattr(source, name) for name in _FACTS})


@dataclass(frozen=True, slots=True)
class Accepted:
    tenant_id: str
    # The run as it was accepted, before its first attempt.
    first: RunSnapshot

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls(job.tenant_id or ANONYMOUS_TENANT, RunSnapshot.pending(job, now=job.submitted_at))

    def laid_over(self, snapshot: RunSnapshot) -> RunSnapshot:
        """The snapshot with the accepted facts, which a worker must not change."""
        return with_facts_of(self.first, snapshot)


def snapshot_of(row: Any) -> RunSnapshot:
    """The last snapshot seen, with the accepted facts; before the first one, a snapshot made from the job."""
    job = Job.decode(row.job.encode())
    if row.snapshot is not None:
        return Accepted.of(job).laid_over(RunSnapshot.decode(row.snapshot.encode()))
    return RunSnapshot.pending(job, now=row.updated_at).model_copy(
        update={"status": RunStatus(row.status), "attempt": row.attempt}
    )


def waiting_snapshot_of(row: Any) -> RunSnapshot:
    """The run as it waits for its next attempt: without the holder of the last snapshot seen."""
    snapshot = without_holder(snapshot_of(row))
    return snapshot.model_copy(update={"attempt": max(snapshot.attempt, row.attempt), "updated_at": time.time()})


def without_holder(snapshot: RunSnapshot) -> RunSnapshot:
    return snapshot.hand_back(now=time.time(), interrupted=True) if snapshot.is_held else snapshot

"""The tenant and the job of a run, as accepted: always from the ledger, never from what a worker wrote."""

from collections import OrderedDict

from fleet_contracts.job import Job
from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_contracts.snapshot import RunSnapshot

from ..errors import RunNotFound
from . import reads
from .sql.database import Database

_MOST_KEPT = 2000
_LARGEST_KEPT = 8192


class AcceptedRuns:
    """Finds accepted jobs. They never change, so the latest ones are cached, unless they are large."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: OrderedDict[str, Job] = OrderedDict()

    def note(self, job: Job, *, size: int) -> None:
        """Cache the job of a run that can no longer be withdrawn: its submitter mostly reads it first."""
        if size <= _LARGEST_KEPT:
            self._kept[job.run_id] = job
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)

    async def find(self, run_id: str, *, tenant_id: str) -> RunSnapshot:
        """The run as it was accepted, before its first attempt; RunNotFound also for a run of another tenant."""
        job = self._kept.get(run_id) or await self._read(run_id)
        if job is None or (job.tenant_id or ANONYMOUS_TENANT) != tenant_id:
            raise RunNotFound(run_id=run_id)
        return RunSnapshot.pending(job, now=job.submitted_at)

    async def _read(self, run_id: str) -> Job | None:
        texts = await self._database.fetch(reads.job_of(run_id))
        if not texts:
            return None
        job = Job.decode(data := texts[0].encode())
        self.note(job, size=len(data))
        return job

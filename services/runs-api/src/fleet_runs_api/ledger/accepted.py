"""Who a run belongs to and what it was asked to do: the ledger says it, never what a worker wrote."""

from collections import OrderedDict

from fleet_contracts.job import Job
from fleet_contracts.names import ANONYMOUS_TENANT

from ..errors import RunNotFound
from . import reads
from .database import Database
from .documents import Accepted

_MOST_KEPT = 2000
_LARGEST_KEPT = 8192


class AcceptedRuns:
    """Finds what was accepted. It never changes, so the latest are kept in memory, unless they are large."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: OrderedDict[str, Job] = OrderedDict()

    def note(self, job: Job, *, size: int) -> None:
        """A run that was accepted for good; whoever submitted it is the first to ask for it."""
        if size <= _LARGEST_KEPT:
            self._kept[job.run_id] = job
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)

    async def find(self, run_id: str, *, tenant_id: str) -> Accepted:
        """RunNotFound also for a run of another tenant."""
        job = self._kept.get(run_id) or await self._read(run_id)
        if job is None or (job.tenant_id or ANONYMOUS_TENANT) != tenant_id:
            raise RunNotFound(run_id=run_id)
        return Accepted.of(job)

    async def _read(self, run_id: str) -> Job | None:
        rows = await self._database.fetch(reads.job_of(run_id))
        if not rows:
            return None
        job = Job.decode(data := rows[0].job.encode())
        self.note(job, size=len(data))
        return job

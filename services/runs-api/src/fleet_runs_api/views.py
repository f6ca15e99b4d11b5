"""What callers see of runs: one run from KV (or the ledger once KV has let go of it), lists from the ledger."""

import logging
import time
import uuid
from typing import Any

import orjson

from fleet_contracts.job import Job
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.names import ANONYMOUS_TENANT
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.kv import Bucket, Entry
from fleet_kit.nats import NatsLink

from . import queries
from .database import Database
from .errors import RunNotFound
from .fleet_view import FleetView
from .queries import RunFilter
from .schemas import RunSummary

logger = logging.getLogger(__name__)

# How a delivery is answered is no business of whoever looks at a run.
_PRIVATE = {"ack_subject", "worker_instance_id"}


class RunViews:
    def __init__(self, *, link: NatsLink, runs: Bucket, database: Database, workers: FleetView) -> None:
        self._link = link
        self._runs = runs
        self._database = database
        self._workers = workers

    async def find(self, run_id: str, *, tenant_id: str) -> RunSnapshot:
        """The run's latest state; RunNotFound also for a run of another tenant."""
        snapshot, _ = await self.find_with_revision(run_id, tenant_id=tenant_id)
        return snapshot

    async def find_with_revision(self, run_id: str, *, tenant_id: str) -> tuple[RunSnapshot, int]:
        """The same, with the KV revision of that state."""
        found = await self.find_live(run_id, tenant_id=tenant_id) or await self._from_ledger(run_id)
        return _own(found, run_id, tenant_id)

    async def find_live(self, run_id: str, *, tenant_id: str) -> tuple[RunSnapshot, int] | None:
        """The run's snapshot in KV and its revision; None if KV has none that can be read."""
        if not _is_run_id(run_id):
            raise RunNotFound(run_id=run_id)
        self._link.require()
        found = _readable(await self._runs.get(run_id))
        return found and _own(found, run_id, tenant_id)

    async def newest(self, wanted: RunFilter, *, limit: int) -> list[RunSummary]:
        rows = await self._database.fetch(queries.page_of_runs(wanted, limit=limit))
        return [RunSummary.model_validate({**row._mapping, "tags": orjson.loads(row.tags)}) for row in rows]

    async def newest_in_full(self, wanted: RunFilter, *, limit: int) -> list[RunSnapshot]:
        rows = await self._database.fetch(queries.page_of_runs(wanted, limit=limit, with_documents=True))
        return [_snapshot_of(row) for row in rows]

    def public(self, snapshot: RunSnapshot, *, with_records: bool) -> bytes:
        """A snapshot as callers see it, with what is known of its worker."""
        exclude = _PRIVATE if with_records else _PRIVATE | {"task_records"}
        worker = self._workers.worker(snapshot.worker_id) if snapshot.worker_id else None
        shown = snapshot
        if worker is not None:
            shown = snapshot.model_copy(
                update={
                    "worker_alive": self._workers.is_alive(worker, now=time.time()),
                    "worker_heartbeat_at": worker.last_heartbeat_at,
                    "worker_tags": worker.tags,
                }
            )
        return shown.model_dump_json(exclude=exclude).encode()

    async def _from_ledger(self, run_id: str) -> tuple[RunSnapshot, int] | None:
        rows = await self._database.fetch(queries.run_with_documents(run_id))
        return (_snapshot_of(rows[0]), rows[0].revision) if rows else None


def _own(found: tuple[RunSnapshot, int] | None, run_id: str, tenant_id: str) -> tuple[RunSnapshot, int]:
    if found is None or (found[0].tenant_id or ANONYMOUS_TENANT) != tenant_id:
        raise RunNotFound(run_id=run_id)
    return found


def _readable(entry: Entry | None) -> tuple[RunSnapshot, int] | None:
    if entry is None:
        return None
    try:
        return RunSnapshot.decode(entry.value), entry.revision
    except MalformedMessage as error:
        logger.warning("a snapshot in KV cannot be read, the ledger answers: %s", error)
        return None


def _snapshot_of(row: Any) -> RunSnapshot:
    """The last snapshot seen; before the first, what acceptance alone says."""
    if row.snapshot is not None:
        return RunSnapshot.decode(row.snapshot.encode())
    job = Job.decode(row.job.encode())
    return RunSnapshot.pending(job, now=row.updated_at).model_copy(
        update={"status": RunStatus(row.status), "attempt": row.attempt}
    )


def _is_run_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False

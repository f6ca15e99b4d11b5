"""The relay: carries what the ledger has accepted to JetStream, as often as it takes."""

import asyncio
import logging
import time
from typing import Any

from fleet_contracts.job import Job
from fleet_contracts.names import NATS_MSG_ID, WireNames, job_message_id
from fleet_contracts.problems import Problem
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.kv import Bucket
from fleet_kit.logging import problem_fields
from fleet_kit.nats import NatsLink, WrongRevision

from . import ledger, queries
from .database import Database
from .group_commit import GroupCommit
from .ledger import Sent

logger = logging.getLogger(__name__)

_PAGE = 200


class Relay:
    def __init__(
        self,
        *,
        link: NatsLink,
        runs: Bucket,
        database: Database,
        commits: GroupCommit,
        names: WireNames,
        retry_sec: float,
    ) -> None:
        self._link = link
        self._runs = runs
        self._database = database
        self._commits = commits
        self._names = names
        self._retry_sec = retry_sec

    async def send(self, job: Job, payload: bytes, snapshot: RunSnapshot, *, dispatch: int) -> int:
        """Write the snapshot, queue the job; the job's place in the stream. Both are in flight at once.

        The server takes them in the order sent; a worker that is faster all the same waits for the snapshot.
        """
        written = await self._runs.update_nowait(job.run_id, snapshot.encode(), revision=0)
        queued = await self._link.publish_nowait(
            self._names.work_subject(job.tag), payload, {NATS_MSG_ID: job_message_id(job.run_id, dispatch)}
        )
        try:
            await self._link.wait_ack(written)
        except WrongRevision:
            # It is there already (this is a repeated send), or there is the marker of a purged one.
            await self._ensure_snapshot(snapshot)
        except NatsUnavailable:
            queued.cancel()
            raise
        return (await self._link.wait_ack(queued)).sequence

    def sent(self, run_id: str, *, dispatch: int, job_sequence: int) -> None:
        """Note in the ledger that a dispatch is out; nobody needs to wait for it."""
        future = self._commits.write_soon(ledger.mark_sent, Sent(run_id, dispatch, job_sequence), patient=True)
        future.add_done_callback(_log_failure)

    async def remove_traces(self, run_id: str) -> None:
        """Remove what a withdrawn run may have left in KV: now if NATS answers, else when it is back."""
        try:
            self._link.require()
            await self._purge(run_id)
        except NatsUnavailable:
            logger.info("traces of withdrawn run %s will be removed when NATS is back", run_id)

    async def send_due(self) -> int:
        """Send what is still in the outbox; how many rows were dealt with."""
        page = await self._database.fetch(queries.due_outbox(time.time(), limit=_PAGE))
        outcomes = await asyncio.gather(*(self._deal_with(row) for row in page))
        return sum(outcomes)

    async def _deal_with(self, row: Any) -> bool:
        try:
            if row.kind == ledger.WITHDRAW:
                await self._purge(row.run_id)
                return True
            if row.job is not None and not RunStatus(row.status).is_terminal:
                payload = row.job.encode()
                job = Job.decode(payload)
                now = time.time()
                snapshot = RunSnapshot.pending(job, now=now).model_copy(update={"attempt": row.attempt})
                sequence = await self.send(job, payload, snapshot, dispatch=row.dispatch)
            else:
                sequence = 0  # withdrawn or ended meanwhile: there is nothing to send
            await self._commits.write(ledger.mark_sent, Sent(row.run_id, row.dispatch, sequence))
            return True
        except NatsUnavailable as error:
            logger.warning(
                "could not send run %s, trying again: %s",
                row.run_id,
                error,
                extra={"run_id": row.run_id, **problem_fields(Problem.NATS_UNAVAILABLE)},
            )
            await self._commits.write(ledger.postpone, (row.id, time.time() + self._retry_sec))
            return False

    async def _purge(self, run_id: str) -> None:
        await self._runs.purge(run_id)
        await self._commits.write(ledger.clear_withdrawn, run_id)

    async def _ensure_snapshot(self, snapshot: RunSnapshot) -> None:
        try:
            await self._runs.create(snapshot.run_id, snapshot.encode())
        except WrongRevision:
            logger.debug("run %s has a snapshot already", snapshot.run_id)


def _log_failure(future: "asyncio.Future[None]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.error("could not note a sent dispatch; it will be sent again", exc_info=error)

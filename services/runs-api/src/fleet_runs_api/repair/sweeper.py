"""The sweeper: compares the ledger with JetStream and repairs what got lost between them.

It uses linearizable reads: a server that lags behind has lost nothing.
"""

import asyncio
import logging
import time
from typing import Any

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.names import WireNames, kv_stream
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.logs.rate_limit import RateLimitedLog
from fleet_kit.nats.kv import Bucket, Entry
from fleet_kit.nats.link import NatsLink, WrongRevision

from ..dispatch.queued_jobs import QueuedJobs
from ..dispatch.relay import Relay
from ..fold import recording
from ..fold.recording import Observation
from ..ledger import reads
from ..ledger.database import Database
from ..ledger.writer import GroupCommit
from ..metrics import RunsMetrics
from ..settings import RunsSettings
from . import lost_runs
from .expiry import Expiry
from .lost_runs import Redispatch
from .possible import possible_snapshot
from .repairs import in_trace_of, repair_each, repairing
from .unclaimed import Unclaimed

logger = logging.getLogger(__name__)

_MOST_HELD = 1000
_CHECK_PAGE = 100
_NOBODY = (-1, None)


class Sweeper:
    def __init__(
        self,
        *,
        settings: RunsSettings,
        link: NatsLink,
        runs: Bucket,
        database: Database,
        commits: GroupCommit,
        relay: Relay,
        expiry: Expiry,
        jobs: QueuedJobs,
        unclaimed: Unclaimed,
        metrics: RunsMetrics,
    ) -> None:
        self._settings = settings
        self._names: WireNames = settings
        self._link = link
        self._runs = runs
        self._database = database
        self._commits = commits
        self._relay = relay
        self._expiry = expiry
        self._jobs = jobs
        self._unclaimed = unclaimed
        self._metrics = metrics
        # The revision of each held run, and since when (by this process's clock) it has not changed.
        self._unmoved: dict[str, tuple[int, float]] = {}
        # The number of reconnects and the bucket's leader at the last round.
        self._led: tuple[int, str | None] | None = None
        # Runs not checked since this time are suspect; set when JetStream may have lost data.
        self._suspect_before: float | None = None
        self._awake = asyncio.Event()
        self._failures = RateLimitedLog()

    def suspect_everything(self) -> None:
        """Check all unfinished runs soon: JetStream may have lost some, while it or this service was down."""
        self._suspect_before = time.time()
        self._awake.set()

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            busy = False
            try:
                if self._link.down_because is None:
                    busy = await self.sweep()
                    self._failures.recovered()
            except Exception as error:  # noqa: BLE001 - logged; the next round retries
                self._failures.log(logger, "sweeping was interrupted", error)
            if not busy:
                await self._pause(stop)

    async def sweep(self) -> bool:
        """One round; True if there is more to do right away."""
        failures = []
        for step in (self._expiry.end_overdue, self._take_from_the_lost, self._unclaimed.hand_out_again):
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - raised below; it does not keep the other steps from running
                failures.append(error)
        is_more_to_do = await self._find_forgotten()
        if failures:
            raise failures[0]
        self._metrics.swept_at.set_to_current_time()
        return is_more_to_do

    async def _pause(self, stop: asyncio.Event) -> None:
        self._awake.clear()
        if stop.is_set():
            return
        waits = [asyncio.ensure_future(self._awake.wait()), asyncio.ensure_future(stop.wait())]
        await asyncio.wait(waits, timeout=self._settings.sweep_interval_sec, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    # Runs whose worker vanished ------------------------------------------------------------------

    async def _take_from_the_lost(self) -> None:
        """Take back runs whose holder sends no heartbeats: the revision of the snapshot no longer changes.

        The time is measured with this process's own clock, so clock skew does no harm.
        """
        now = time.monotonic()
        held = await self._database.fetch(reads.held_runs(limit=_MOST_HELD))
        before, self._unmoved = self._unmoved, {}
        if held and await self._has_been_disturbed():
            # No heartbeat could be written while NATS or the bucket's leader was away, so the time starts again. A
            # holder may first have to wait for the timeout of a request to the previous leader.
            before = {}
            now += self._settings.nats_request_timeout_sec
        lost = []
        for row in held:
            revision, since = before.get(row.run_id, (row.revision, now))
            self._unmoved[row.run_id] = (row.revision, since if revision == row.revision else now)
            if revision == row.revision and now - since > self._settings.run_lost_after_sec:
                lost.append(row)
        await repair_each(self._database, self._take_back, lost)

    async def _has_been_disturbed(self) -> bool:
        """Whether the bucket may have been unwritable at some time since the last round."""
        before, self._led = self._led, _NOBODY
        info = await self._link.stream_info(kv_stream(self._names.runs_kv_bucket))
        self._led = (self._link.reconnects, info.cluster.leader if info.cluster else None)
        return before not in (None, self._led)

    async def _take_back(self, row: Any) -> None:
        """Revoke the holder's claim by compare-and-set (fencing: it can write nothing more), then requeue the run.

        A run in CANCELLING ends here, also if it has no holder.
        """
        run_id = row.run_id
        entry = await self._runs.get(run_id, linearizable=True)
        if entry is None:
            return  # JetStream lost it: the check below finds that
        try:
            snapshot = RunSnapshot.decode_of(run_id, entry.value)
        except MalformedMessage:
            return  # the check below replaces it
        if entry.revision != row.revision:
            await self._record(snapshot, entry)
            return
        now = time.time()
        cancelled = snapshot.status is RunStatus.CANCELLING
        if not (snapshot.is_held or cancelled):
            return
        reason = "worker_lost" if snapshot.is_held else "cancel_unfinished"
        after = (
            snapshot.finish(RunStatus.CANCELLED, now=now, error=snapshot.error, reason=reason)
            if cancelled
            else snapshot.hand_back(now=now, interrupted=True)
        )
        with await repairing(self._database, run_id, reason):
            try:
                await self._runs.update(run_id, after.encode(), revision=entry.revision)
            except WrongRevision:
                return  # the holder is alive after all
            if snapshot.ack_subject:
                await self._jobs.answer(run_id, snapshot.ack_subject, b"+ACK" if cancelled else b"-NAK")
            elif cancelled:
                await self._jobs.remove_of_ended(run_id)
            self._metrics.repairs.labels(reason).inc()
            logger.warning(
                "run %s of %s is %s",
                run_id,
                f"vanished worker {snapshot.worker_id}" if snapshot.is_held else "nobody",
                "cancelled" if cancelled else "handed to another",
                extra={"run_id": run_id, "worker_id": snapshot.worker_id, "reason": reason},
            )

    # Runs that JetStream forgot ------------------------------------------------------------------

    async def _find_forgotten(self) -> bool:
        """Check a page of unfinished runs, those checked longest ago first; True if suspects remain.

        Suspects are checked as fast as possible. All other runs are checked one page per round, however many
        wait in the queue.
        """
        if self._suspect_before is not None:
            suspects = await self._database.fetch(reads.unchecked_runs(self._suspect_before, limit=_CHECK_PAGE))
            await repair_each(self._database, self._check, suspects)
            if len(suspects) == _CHECK_PAGE:
                return True
            self._suspect_before = None
        routine = time.time() - self._settings.run_check_interval_sec
        unchecked = await self._database.fetch(reads.unchecked_runs(routine, limit=_CHECK_PAGE))
        await repair_each(self._database, self._check, unchecked)
        return False

    async def _check(self, row: Any) -> None:
        entry = await self._runs.get(row.run_id, linearizable=True)
        if entry is None:
            await self._send_again(row, "snapshot_lost", forgotten=True)
            return
        try:
            snapshot = possible_snapshot(row, entry)
        except MalformedMessage as error:
            with await in_trace_of(self._database, row.run_id):
                logger.error(
                    "the snapshot of run %s is made anew: %s", row.run_id, error, extra={"run_id": row.run_id}
                )
            await self._runs.delete(row.run_id)
            await self._send_again(row, "snapshot_unreadable", forgotten=True)
            return
        if entry.revision < row.revision:
            # Lower than the ledger's revision: the store was lost, and revisions started again at 1.
            await self._commits.write(lost_runs.forget_revision, (row.run_id, row.revision))
        if not await self._record(snapshot, entry) and not snapshot.is_terminal and not snapshot.is_held:
            await self._check_queue(row, entry)
        await self._commits.write_soon(lost_runs.note_checked, (row.run_id, time.time()), patient=True)

    async def _check_queue(self, row: Any, entry: Entry) -> None:
        """Check that JetStream has the job of a waiting run and will deliver it; else end or requeue the run."""
        if await self._jobs.has(row.run_id, row.job_sequence):
            await self._expiry.end_if_exhausted(row, entry.revision)
            return
        # Read again: the job may have been taken and finished between the two reads.
        again = await self._runs.get(row.run_id, linearizable=True)
        if again is not None and again.revision == entry.revision:
            await self._send_again(row, "job_lost", forgotten=False)

    async def _send_again(self, row: Any, reason: str, *, forgotten: bool) -> None:
        wanted = Redispatch(
            row.run_id,
            expected_dispatch=row.dispatch,
            forgotten=forgotten,
            now=time.time(),
            reason=reason,
            # Every claim needs a delivery, so there were at most this many.
            unheard_attempts=self._settings.consumer_max_deliver,
        )
        with await repairing(self._database, row.run_id, reason):
            if not await self._commits.write(lost_runs.redispatch, wanted):
                return
            self._metrics.repairs.labels(reason).inc()
            self._relay.wake()
            logger.warning(
                "JetStream had lost run %s (%s); it is queued again",
                row.run_id,
                reason,
                extra={"run_id": row.run_id, "reason": reason},
            )

    async def _record(self, snapshot: RunSnapshot, entry: Entry) -> bool:
        """Fold a snapshot in directly, as the ingest may have missed it or lag behind; True if the ledger changed."""
        seen = Observation(snapshot, entry.revision, entry.value.decode())
        changed = await self._commits.write(recording.record, [seen])
        self._metrics.note_changes(observation.snapshot for observation in changed)
        return bool(changed)

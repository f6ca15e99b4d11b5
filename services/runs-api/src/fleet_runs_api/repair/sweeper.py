"""The sweeper: compares the ledger with JetStream and repairs what got lost between them.

It uses linearizable reads: a server that lags behind has lost nothing.
"""

import logging
import time
from contextlib import ExitStack

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.names import kv_stream
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.nats.stores.documents import Stored

from ..dispatch.queued_jobs import QueuedJobs
from ..dispatch.relay import Relay
from ..fold import recording
from ..fold.recording import Observation
from ..fold.rules import is_possible
from ..ledger import reads
from ..ledger.rows import RunRevision, UncheckedRun
from ..loop import Loop
from ..resources import Resources
from . import lost_runs
from .expiry import Expiry
from .lost_runs import Redispatch
from .repairs import in_trace_of, repair_each, repairing
from .unclaimed import Unclaimed

logger = logging.getLogger(__name__)

_MOST_HELD = 1000
_CHECK_PAGE = 100
_NOBODY = (-1, None)


class Sweeper(Loop):
    interruption = "sweeping was interrupted"

    def __init__(
        self, shared: Resources, *, relay: Relay, expiry: Expiry, jobs: QueuedJobs, unclaimed: Unclaimed
    ) -> None:
        super().__init__(shared)
        self._relay = relay
        self._expiry = expiry
        self._jobs = jobs
        self._unclaimed = unclaimed
        # The revision of each held run, and since when (by this process's clock) it has not changed.
        self._unmoved: dict[str, tuple[int, float]] = {}
        # The number of reconnects and the bucket's leader at the last round.
        self._led: tuple[int, str | None] | None = None
        # Runs not checked since this time are suspect; set when JetStream may have lost data.
        self._recheck_before: float | None = None
        self.pause_seconds = self._settings.sweep_interval_sec

    def recheck_all(self) -> None:
        """Check all unfinished runs soon: JetStream may have lost some, while it or this service was down."""
        self._recheck_before = time.time()
        self.wake()

    async def round(self) -> float:
        return 0.0 if await self.sweep() else self.pause_seconds

    async def sweep(self) -> bool:
        """One round; True if there is more to do right away."""
        failures = []
        for step in (self._expiry.end_overdue, self._take_back_from_lost_holders, self._unclaimed.hand_out_again):
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - raised below; it does not keep the other steps from running
                failures.append(error)
        is_more_to_do = await self._find_forgotten()
        if failures:
            raise failures[0]
        self._metrics.swept_at.set_to_current_time()
        return is_more_to_do

    # Runs whose worker vanished ------------------------------------------------------------------

    async def _take_back_from_lost_holders(self) -> None:
        """Take back runs whose holder sends no heartbeats: the revision of the snapshot no longer changes.

        The time is measured with this process's own clock, so clock skew does no harm.
        """
        now = time.monotonic()
        held = await self._database.fetch(reads.held_runs(limit=_MOST_HELD))
        before, self._unmoved = self._unmoved, {}
        if held and await self._may_have_been_unwritable():
            # No heartbeat could be written while NATS or the bucket's leader was away, so the time starts again. A
            # holder may first have to wait for the timeout of a request to the previous leader.
            before = {}
            now += self._settings.nats_request_timeout_sec
        lost = []
        for run in held:
            revision, since = before.get(run.run_id, (run.revision, now))
            self._unmoved[run.run_id] = (run.revision, since if revision == run.revision else now)
            if revision == run.revision and now - since > self._settings.run_lost_after_sec:
                lost.append(run)
        await repair_each(self._database, self._take_back, lost)

    async def _may_have_been_unwritable(self) -> bool:
        """Whether the bucket may have been unwritable at some time since the last round."""
        before, self._led = self._led, _NOBODY
        info = await self._link.stream_info(kv_stream(self._settings.runs_kv_bucket))
        self._led = (self._link.reconnects, info.cluster.leader if info.cluster else None)
        return before not in (None, self._led)

    async def _take_back(self, run: RunRevision) -> None:
        """Revoke the holder's claim by compare-and-set (fencing: it can write nothing more), then requeue the run.

        A run in CANCELLING ends here, also if it has no holder.
        """
        run_id = run.run_id
        before: RunSnapshot | None = None
        with ExitStack() as traced:

            async def take_back(there: RunSnapshot | None) -> RunSnapshot | None:
                nonlocal before
                # A snapshot that JetStream has lost, or that is unreadable, is replaced by the check below.
                if there is None or not (there.is_held or there.status is RunStatus.CANCELLING):
                    return None
                before = there
                reason = _reason_to_take_back(there)
                traced.close()
                traced.enter_context(await repairing(self._database, run_id, reason))
                return there.take_back(now=time.time(), reason=reason)

            stored = await self._runs.change(
                run_id, take_back, only_revision=run.revision, linearizable=True, lenient=True
            )
            if stored is None:
                return
            if not stored.is_new:
                if stored.revision != run.revision:  # the holder is alive after all
                    await self._record(stored)
                return
            assert before is not None
            if before.ack_subject:
                answer = b"+ACK" if stored.value.is_terminal else b"-NAK"
                await self._jobs.answer(run_id, before.ack_subject, answer)
            elif stored.value.is_terminal:
                await self._jobs.remove_of_ended(run_id)
            reason = _reason_to_take_back(before)
            self._metrics.repairs.labels(reason).inc()
            logger.warning(
                "run %s of %s is %s",
                run_id,
                f"vanished worker {before.worker_id}" if before.is_held else "nobody",
                "cancelled" if stored.value.is_terminal else "handed to another",
                extra={"run_id": run_id, "worker_id": before.worker_id, "reason": reason},
            )

    # Runs that JetStream forgot ------------------------------------------------------------------

    async def _find_forgotten(self) -> bool:
        """Check a page of unfinished runs, those checked longest ago first; True if suspects remain.

        Suspects are checked as fast as possible. All other runs are checked one page per round, however many
        wait in the queue.
        """
        if self._recheck_before is not None:
            suspects = await self._database.fetch(reads.unchecked_runs(self._recheck_before, limit=_CHECK_PAGE))
            await repair_each(self._database, self._check, suspects)
            if len(suspects) == _CHECK_PAGE:
                return True
            self._recheck_before = None
        routine = time.time() - self._settings.run_check_interval_sec
        unchecked = await self._database.fetch(reads.unchecked_runs(routine, limit=_CHECK_PAGE))
        await repair_each(self._database, self._check, unchecked)
        return False

    async def _check(self, run: UncheckedRun) -> None:
        try:
            stored = await self._runs.read(run.run_id, linearizable=True)
            if stored is not None and not is_possible(run.known, stored.value, now=time.time()):
                raise MalformedMessage("RunSnapshot: says of the run what the ledger knows to be impossible")
        except MalformedMessage as error:
            with await in_trace_of(self._database, run.run_id):
                logger.error(
                    "the snapshot of run %s is made anew: %s", run.run_id, error, extra={"run_id": run.run_id}
                )
            await self._runs.bucket.delete(run.run_id)
            await self._send_again(run, "snapshot_unreadable", forgotten=True)
            return
        if stored is None:
            await self._send_again(run, "snapshot_lost", forgotten=True)
            return
        if stored.revision < run.known.revision:
            # Lower than the ledger's revision: the store was lost, and revisions started again at 1.
            await self._commits.write(lost_runs.forget_revision, (run.run_id, run.known.revision))
        snapshot = stored.value
        if not await self._record(stored) and not snapshot.is_terminal and not snapshot.is_held:
            await self._check_queue(run, stored.revision)
        await self._commits.write_soon(lost_runs.note_checked, (run.run_id, time.time()), deferrable=True)

    async def _check_queue(self, run: UncheckedRun, revision: int) -> None:
        """Check that JetStream has the job of a waiting run and will deliver it; else end or requeue the run."""
        if await self._jobs.has(run.run_id, run.job_sequence):
            await self._expiry.end_if_exhausted(run, revision)
            return
        # Read again: the job may have been taken and finished between the two reads.
        again = await self._runs.read(run.run_id, linearizable=True, lenient=True)
        if again is not None and again.revision == revision:
            await self._send_again(run, "job_lost", forgotten=False)

    async def _send_again(self, run: UncheckedRun, reason: str, *, forgotten: bool) -> None:
        wanted = Redispatch(
            run.run_id,
            expected_dispatch=run.dispatch,
            forgotten=forgotten,
            now=time.time(),
            reason=reason,
            # Every claim needs a delivery, so there were at most this many.
            unheard_attempts=self._settings.consumer_max_deliver,
        )
        with await repairing(self._database, run.run_id, reason):
            if not await self._commits.write(lost_runs.redispatch, wanted):
                return
            self._metrics.repairs.labels(reason).inc()
            self._relay.wake()
            logger.warning(
                "JetStream had lost run %s (%s); it is queued again",
                run.run_id,
                reason,
                extra={"run_id": run.run_id, "reason": reason},
            )

    async def _record(self, stored: Stored[RunSnapshot]) -> bool:
        """Fold a snapshot in directly, as the ingest may have missed it or lag behind; True if the ledger changed."""
        changed = await self._commits.write(recording.record, [Observation.of(stored)])
        self._metrics.note_changes(observation.snapshot for observation in changed)
        return bool(changed)


def _reason_to_take_back(snapshot: RunSnapshot) -> str:
    return "worker_lost" if snapshot.is_held else "cancel_unfinished"

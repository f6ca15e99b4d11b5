"""Has jobs that were delivered but not claimed redelivered long before AckWait."""

import logging
import time
from collections import deque
from dataclasses import dataclass

from fleet_contracts.names import ack_subject
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.rate_limit import RateLimitedLog

from ..dispatch.declined import DeclinedJobs
from ..dispatch.queues import Queues, queue_of
from ..ledger import reads
from ..ledger.rows import QueuedRun
from ..live.workers import FleetView
from ..resources import Part, Resources
from .repairs import repairing

logger = logging.getLogger(__name__)

REASON = "delivery_unclaimed"
_PAGE = 100
_TAGS_PER_ROUND = 20
# A worker claims a delivery at once; after this time callers are shown that none has.
_SHOWN_AFTER_SECONDS = 1.0


@dataclass(slots=True)
class _Delivered:
    job_sequence: int
    since: float
    # When it is given back next, and how often it was.
    next_at: float
    times: int = 0


class Unclaimed(Part):
    """Compares the deliveries of each queue with the runs that the ledger knows to be waiting.

    JetStream may deliver a job to a pull request whose connection is gone, and a worker may die between delivery and
    claim. JetStream redelivers such a job after AckWait. Here it is nak'ed on behalf of its receiver, with a backoff.
    A worker that is only slow loses nothing, since the claim decides which worker executes the run.
    """

    def __init__(self, shared: Resources, *, queues: Queues, workers: FleetView, declined: DeclinedJobs) -> None:
        super().__init__(shared)
        self._declined = declined
        self._queues = queues
        self._workers = workers
        self._tags: deque[str] = deque()
        self._delivered: dict[str, dict[str, _Delivered]] = {}
        self._failures = RateLimitedLog()

    def has(self, run_id: str, tag: str) -> bool:
        """Whether the run's job was delivered some time ago and not claimed."""
        found = self._delivered.get(tag, {}).get(run_id)
        return found is not None and time.monotonic() - found.since > _SHOWN_AFTER_SECONDS

    async def hand_out_again(self) -> None:
        """One round over some of the queues, the jobs delivered longest ago first."""
        self._tags.extend(sorted(self._queues.tags.difference(self._tags)))
        for _ in range(min(_TAGS_PER_ROUND, len(self._tags))):
            tag = self._tags.popleft()
            self._tags.append(tag)
            try:
                await self._look_at(tag)
            except NatsUnavailable as error:
                # The other queues are still checked. The timers of this one go on.
                self._failures.log(logger, f"the queue of tag {tag} is looked at later", error)

    async def _look_at(self, tag: str) -> None:
        waiting = await self._database.fetch(reads.queued_runs(tag, time.time(), limit=_PAGE))
        info = await queue_of(self._link, self._settings, tag) if waiting else None
        before = self._delivered.pop(tag, {})
        if info is None or not info.num_ack_pending or info.delivered is None:
            return
        now = time.monotonic()
        # A job that was handed back waits in the queue like any other, and looks like an unclaimed one. As long as no
        # worker has a free slot, it has to wait there.
        has_room = self._workers.capacity(tag, now=time.time()).free_slots > 0
        delivered = self._delivered[tag] = {}
        due = []
        for run in waiting:
            if run.job_sequence > info.delivered.stream_seq:
                break
            if self._declined.why_waiting(run.run_id) is not None:
                continue  # it was given back, and is delivered again soon
            known = before.get(run.run_id)
            if known is None or known.job_sequence != run.job_sequence:
                known = _Delivered(run.job_sequence, now, now + self._settings.run_lost_after_sec)
            delivered[run.run_id] = known
            if has_room and now >= known.next_at:
                due.append((run, known))
        for run, known in due:
            known.times += 1
            known.next_at = now + self._settings.run_lost_after_sec * 2.0**known.times
            await self._give_back(run, tag, info.delivered.consumer_seq, times=known.times)

    async def _give_back(self, run: QueuedRun, tag: str, consumer_sequence: int, *, times: int) -> None:
        """Nak a delivery if the run waits in KV, too: the ledger may lag behind."""
        stored = await self._runs.read(run.run_id, linearizable=True, lenient=True)
        if stored is None or stored.value.status is not RunStatus.PENDING or stored.value.is_held:
            return
        with await repairing(self._database, run.run_id, REASON):
            # JetStream accepts the answer for any unacknowledged delivery, whichever one the subject names.
            durable = self._settings.work_durable(tag)
            subject = ack_subject(self._settings.work_stream, durable, run.job_sequence, consumer_sequence)
            await self._link.send(subject, b"-NAK")
            self._metrics.repairs.labels(REASON).inc()
            logger.warning(
                "no worker has claimed the job of run %s; it is handed out again",
                run.run_id,
                extra={"run_id": run.run_id, "reason": REASON, "meta": {"times": times}},
            )

"""Decides about jobs whose flow the worker that took them does not offer: another worker, later, or nobody."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fleet_contracts.declined import Declined, DeclinedAnswer, DeclinedDecision
from fleet_contracts.job import Job
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.status import RunStatus
from fleet_kit.errors import FleetError
from fleet_kit.logs.rate_limit import RateLimitedLog

from ..ledger import outbox, reads
from ..ledger.outbox import QueueAgain
from ..ledger.rows import JobPlace, RunRow
from ..live.catalogues import Catalogues
from ..live.workers import FleetView
from ..resources import Part, Resources
from .handover import DeclinedJob, HandOver, Takeovers
from .placement import Placement
from .queued_jobs import QueuedJobs, is_same_job

logger = logging.getLogger(__name__)

_QUEUE_GROUP = "runs-api"
_MOST_AT_ONCE = 64
_FIRST_DELAY_SECONDS = 0.2
_LONGEST_DELAY_SECONDS = 1.0
# A job that no worker keeps: at first it goes to the end of the queue at once, so that those behind it get through.
_LONGEST_PARKED_SECONDS = 10.0
_TIMES_KEPT = 4
# The next request may offer the job to another one of the first few.
_MOST_OFFERED = 3
# A worker without a catalogue may take the job by chance; after this time it is taken not to.
_UNKNOWN_SECONDS = 10.0
# What is remembered of a run that nobody declines any more.
_MEMORY_SECONDS = 60.0
_MOST_REMEMBERED = 10_000

_HANDED_OVER = DeclinedAnswer(decision=DeclinedDecision.HANDED_OVER)
_AS_USUAL = DeclinedAnswer(decision=DeclinedDecision.NOT_FOUND)
_REFUSED = DeclinedAnswer(decision=DeclinedDecision.LATER, retry_seconds=_LONGEST_DELAY_SECONDS)


@dataclass(slots=True)
class _Declining:
    """A run whose job was declined; all times by the monotonic clock."""

    # Who has declined it, and when each of them had loaded the flows that it looked into.
    by: dict[str, float] = field(default_factory=dict)
    times: int = 0
    # How often its job was put at the end of the queue.
    requeued: int = 0
    seen_at: float = 0.0
    # Since when no live worker offers the flow.
    nobody_since: float | None = None
    # When it is asked about again; 0: it was handed over.
    back_at: float = 0.0
    why: str = ""
    # The worker that has declined it last.
    asked_by: str = ""
    takeovers: Takeovers = field(default_factory=Takeovers)


class DeclinedJobs(Part):
    """Each replica remembers the runs that it was asked about; one that two of them know may wait a little longer."""

    def __init__(
        self,
        shared: Resources,
        *,
        jobs: QueuedJobs,
        workers: FleetView,
        catalogues: Catalogues,
        on_requeue: Callable[[], None],
    ) -> None:
        super().__init__(shared)
        self._on_requeue = on_requeue
        self._jobs = jobs
        self._workers = workers
        self._placement = Placement(workers, catalogues)
        self._handover = HandOver(shared)
        self._subscription: Subscription | None = None
        self._at_once = asyncio.Semaphore(_MOST_AT_ONCE)
        self._runs_declined: OrderedDict[str, _Declining] = OrderedDict()
        self._failures = RateLimitedLog()

    async def listen(self) -> None:
        """Subscribe to the requests of all workers; a hook of the link."""
        if self._subscription is None:
            subject = self._settings.declined_subject("*")
            self._subscription = await self._link.client.subscribe(subject, queue=_QUEUE_GROUP, cb=self._on_request)

    def why_waiting(self, run_id: str) -> str | None:
        """Why the run waits for its flow, if its job was declined and is kept by the worker that has declined it."""
        found = self._runs_declined.get(run_id)
        if found is None or time.monotonic() > found.back_at + _LONGEST_DELAY_SECONDS:
            return None
        return found.why

    def may_still_come(self, run_id: str, flow_name: str, tag: str) -> bool:
        """Whether workers that do not offer the flow may have used up a job's deliveries, and others do or will."""
        is_divided = self._placement.is_divided(flow_name, tag, now=time.time())
        return is_divided or self.why_waiting(run_id) is not None

    # Requests ------------------------------------------------------------------------------------

    async def _on_request(self, msg: Msg) -> None:
        await self._at_once.acquire()
        self._spawn(self._answer(msg)).add_done_callback(lambda _: self._at_once.release())

    async def _answer(self, msg: Msg) -> None:
        """A worker that gets no answer asks again."""
        worker_id = msg.subject.rpartition(".")[2]
        try:
            asked = Declined.decode(msg.data)
            answer = await self._decide(asked, worker_id)
            if msg.reply:
                await self._link.send(msg.reply, answer.encode())
        except MalformedMessage as error:
            logger.warning("worker %s asks about a job in an unreadable way: %s", worker_id, error)
        except FleetError as error:
            self._failures.log(logger, "a job that was declined cannot be dealt with yet", error)
        except Exception:
            logger.exception("a job that worker %s has declined could not be dealt with", worker_id)

    async def _decide(self, asked: Declined, worker_id: str) -> DeclinedAnswer:
        rows = await self._database.fetch(reads.run_with_documents(asked.run_id))
        if not rows:
            return self._count("as_usual", _AS_USUAL)
        [row] = rows
        if not await self._is_honest(asked, worker_id, row):
            # A job that was offered may have been queued again since then.
            level = logging.DEBUG if asked.is_wanted else logging.WARNING
            about = {"run_id": asked.run_id, "worker_id": worker_id}
            logger.log(level, "worker %s has declined a job that is not in its hands", worker_id, extra=about)
            return self._count("refused", _REFUSED)
        stored = await self._runs.read(asked.run_id, linearizable=True, lenient=True)
        job = Job.decode(row.job.encode())
        if stored is None or job.workflow_yaml is not None:
            return self._count("as_usual", _AS_USUAL)
        run = stored.value
        if run.is_held and run.worker_id != worker_id and is_same_job(run.ack_subject, asked.ack_subject):
            # A worker that was busy when it was offered the job: it has taken it since then, and will answer it.
            return self._count("handed_over", _HANDED_OVER)
        if (run.is_held and run.worker_id != worker_id) or run.status not in (RunStatus.PENDING, RunStatus.RUNNING):
            return self._count("as_usual", _AS_USUAL)
        # A new job would hide how often the run of one that kills its workers was delivered.
        is_queued = run.status is RunStatus.PENDING and not run.is_held and not run.interruptions
        dispatch = row.dispatch if is_queued else None
        if asked.is_wanted:
            if not run.is_held:
                declining = self._remember(asked.run_id, time.monotonic())
                await self._handover.give(worker_id, DeclinedJob(asked, declining.asked_by, job), declining.takeovers)
            return _HANDED_OVER
        return await self._place(asked, job, worker_id, is_held=run.is_held, dispatch=dispatch)

    async def _is_honest(self, asked: Declined, worker_id: str, row: RunRow) -> bool:
        """Whether the worker serves the run's tag and names a delivery of its job; else it learns nothing of it."""
        tag, record = row.kind.tag, self._workers.worker(worker_id)
        if record is None or tag not in record.tags or (asked.tag, asked.flow_name) != (tag, row.kind.flow_name):
            return False
        return await self._jobs.is_delivery(asked.run_id, asked.ack_subject, JobPlace(tag, row.job_sequence))

    async def _place(
        self, asked: Declined, job: Job, worker_id: str, *, is_held: bool, dispatch: int | None
    ) -> DeclinedAnswer:
        """`dispatch`: the latest one, if the job may be queued again."""
        now = time.monotonic()
        declining = self._remember(asked.run_id, now)
        declining.asked_by = worker_id
        declined = DeclinedJob(asked, worker_id, job)
        if declining.takeovers.last == declined.delivery:
            return self._handed_over(declining)
        # Not what it has loaded since it looked: that may have the flow.
        if (loaded_at := asked.loaded_at or self._placement.loaded_at(worker_id)) is not None:
            declining.by[worker_id] = loaded_at
        prospects = self._placement.prospects(
            job.flow_name,
            job.tag,
            asking=worker_id,
            declined_by=declining.by,
            slots_taken=self._handover.slots_taken,
            is_silent=lambda worker_id: self._handover.is_silent(worker_id, job.tag),
            now=time.time(),
        )
        if prospects.is_offered:
            declining.nobody_since = None
        if prospects.free and is_held:
            # Whoever gets it next may claim it only once it is given back.
            return self._later(declining, 0.0, f"a free worker of tag {job.tag} is about to get it")
        workers, busy = prospects.free, prospects.busy[:_MOST_OFFERED]
        # A busy worker may want the job later; not if that goes to the end of the queue.
        if busy and (asked.has_room or dispatch is None):
            workers = [*workers, busy[declining.times % len(busy)]]
        if not is_held and await self._handover.offer(workers, declined, declining.takeovers):
            return self._handed_over(declining)
        declining.times += 1
        delay = min(_FIRST_DELAY_SECONDS * 2.0 ** min(declining.times - 1, 10), _LONGEST_DELAY_SECONDS)
        if prospects.is_unheard:
            why = f"no worker of tag {job.tag} that offers the flow answers"
            # They can take the job from the queue only, so it is there from time to time.
            is_wanted, longest = True, _LONGEST_PARKED_SECONDS
            if asked.has_room:
                is_wanted, longest = declining.times % _TIMES_KEPT == 0, 0.0
            if is_wanted and await self._queue_again(asked, declining, dispatch, why, longest=longest):
                return self._count("requeued", _HANDED_OVER)
            return self._later(declining, delay, why)
        if prospects.is_offered:
            why = f"all workers of tag {job.tag} that offer the flow are busy"
            if not asked.has_room and await self._queue_again(asked, declining, dispatch, why):
                return self._count("requeued", _HANDED_OVER)
            return self._later(declining, delay, why, "busy")
        wait = self._settings.flow_wait_sec
        if prospects.is_unknown:
            wait = max(wait, _UNKNOWN_SECONDS)
        if declining.nobody_since is None:
            declining.nobody_since = now
        left = declining.nobody_since + wait - now
        if left > 0:
            why = f"no live worker of tag {job.tag} offers the flow; the run waits {left:.0f} s for one"
            # A worker that nothing is known of can take the job from the queue only.
            is_wanted = prospects.is_unknown or not asked.has_room
            longest = _LONGEST_DELAY_SECONDS if prospects.is_unknown else _LONGEST_PARKED_SECONDS
            if is_wanted and await self._queue_again(asked, declining, dispatch, why, longest=min(left, longest)):
                return self._count("requeued", _HANDED_OVER)
            return self._later(declining, min(delay, left), why)
        self._runs_declined.pop(asked.run_id, None)
        error = self._placement.why_nowhere(job.flow_name, job.tag, now=time.time())
        return self._count("not_found", DeclinedAnswer(decision=DeclinedDecision.NOT_FOUND, error=error))

    def _handed_over(self, declining: _Declining) -> DeclinedAnswer:
        declining.back_at = 0.0
        return self._count("handed_over", _HANDED_OVER)

    def _later(self, declining: _Declining, delay: float, why: str, decision: str = "later") -> DeclinedAnswer:
        declining.back_at, declining.why = time.monotonic() + delay, why
        return self._count(decision, DeclinedAnswer(decision=DeclinedDecision.LATER, retry_seconds=delay))

    async def _queue_again(
        self,
        asked: Declined,
        declining: _Declining,
        dispatch: int | None,
        why: str,
        *,
        longest: float = _LONGEST_PARKED_SECONDS,
    ) -> bool:
        """Put the job at the end of the queue, later each time; False if that may not be, or was done already."""
        if dispatch is None:
            return False
        delay = min(2.0 ** (declining.requeued - 1), longest) if declining.requeued else 0.0
        now = time.time()
        if not await self._commits.write(outbox.requeue, QueueAgain(asked.run_id, dispatch, now + delay, now)):
            return False
        declining.requeued = min(declining.requeued + 1, 10)
        declining.back_at, declining.why = time.monotonic() + delay, why
        self._on_requeue()
        # The delivery was checked to be one of the run's job.
        await self._link.send(asked.ack_subject, b"+TERM")
        return True

    # Memory --------------------------------------------------------------------------------------

    def _remember(self, run_id: str, now: float) -> _Declining:
        kept = max(_MEMORY_SECONDS, 2 * self._settings.flow_wait_sec)
        declined = self._runs_declined
        while declined and (len(declined) > _MOST_REMEMBERED or next(iter(declined.values())).seen_at < now - kept):
            declined.popitem(last=False)
        found = declined.setdefault(run_id, _Declining())
        declined.move_to_end(run_id)
        found.seen_at = now
        return found

    def _count(self, decision: str, answer: DeclinedAnswer) -> DeclinedAnswer:
        self._metrics.declined.labels(decision).inc()
        return answer

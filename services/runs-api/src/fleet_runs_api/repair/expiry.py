"""Ends runs that are past their deadline, or whose job was delivered as often as the queue allows."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import orjson
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fleet_contracts import spans
from fleet_contracts.dead_letter import DeadLetter, DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.names import DEAD_LETTER_ID, dead_letter_id
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.rate_limit import RateLimitedLog
from fleet_kit.nats.messages import stored_message
from fleet_kit.telemetry.tracing import Kind, span

from ..dispatch.declined import DeclinedJobs
from ..dispatch.queued_jobs import QueuedJobs
from ..dispatch.queues import queue_of
from ..fold import history
from ..fold.history import Decided, DecisionKind
from ..fold.rules import is_possible
from ..ledger import reads
from ..ledger.documents import waiting_snapshot_of
from ..ledger.rows import OverdueRun, RunRow, UncheckedRun
from ..ledger.sql.texts import iso
from ..resources import Part, Resources
from . import lost_runs
from .lost_runs import Redispatch
from .repairs import repair_each, repairing

logger = logging.getLogger(__name__)

_PAGE = 100
# A holder ends its overdue run itself. If it has not done so after this time, the run is ended here.
_HOLDER_SECONDS = 5.0
_ADVISORY = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
_QUEUE_GROUP = "runs-api"
_ELSEWHERE = "flow_elsewhere"


class Expiry(Part):
    def __init__(
        self, shared: Resources, *, jobs: QueuedJobs, declined: DeclinedJobs, on_requeue: Callable[[], None]
    ) -> None:
        super().__init__(shared)
        self._jobs = jobs
        self._declined = declined
        self._on_requeue = on_requeue
        self._advisories: Subscription | None = None
        self._failures = RateLimitedLog()

    # Deadlines -----------------------------------------------------------------------------------

    async def end_overdue(self) -> None:
        """End a page of runs whose deadline has passed."""
        now = time.time()
        overdue = await self._database.fetch(reads.overdue_runs(now, limit=_PAGE))
        await repair_each(self._database, partial(self._end_overdue, now=now), overdue)

    async def _end_overdue(self, run: OverdueRun, *, now: float) -> None:
        error = f"the run's deadline {iso(run.deadline_at)} passed before it ended"
        spare_holder = now < run.deadline_at + _HOLDER_SECONDS
        await self._fail(run.run_id, DeadLetterReason.DEADLINE_EXCEEDED, error, spare_holder=spare_holder)

    # Deliveries ----------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Subscribe to JetStream's advisories of jobs that reached max_deliver; a hook of the link."""
        if self._advisories is None:
            subject = f"{_ADVISORY}.{self._settings.work_stream}.>"
            self._advisories = await self._link.client.subscribe(subject, queue=_QUEUE_GROUP, cb=self._on_advisory)

    async def end_if_exhausted(self, run: UncheckedRun, revision: int) -> bool:
        """Fail a waiting run if JetStream will not deliver its job again; True if that is so.

        JetStream does not report this for a single message. But a job that was delivered before, while no delivery
        at all is unacknowledged now, is not redelivered. A run that has moved on from `revision` is left alone: a
        worker got its job.
        """
        try:
            info = await queue_of(self._link, self._settings, run.tag)
        except NatsUnavailable as error:
            # The job exists. A queue that does not answer must not delay the runs of other tags.
            self._failures.log(logger, f"the queue of tag {run.tag} is looked at later", error)
            return False
        if info is None:
            return False
        handed_out = info.delivered.stream_seq if info.delivered else 0
        if info.num_ack_pending or not run.job_sequence or run.job_sequence > handed_out:
            return False
        await self._fail_exhausted(run.run_id, run.job_sequence, info.config.max_deliver, revision=revision)
        return True

    async def _on_advisory(self, msg: Msg) -> None:
        advisory = orjson.loads(msg.data)
        work = self._end_exhausted(int(advisory["stream_seq"]), advisory.get("deliveries"))
        self._spawn(work).add_done_callback(self._log_failure)

    async def _end_exhausted(self, sequence: int, deliveries: int | None) -> None:
        message = await stored_message(self._link, self._settings.work_stream, sequence)
        if message is None:
            return
        try:
            run_id = Job.decode(message.data).run_id
        except MalformedMessage:
            return  # a worker sends a dead letter for it
        places = await self._database.fetch(reads.job_place(run_id))
        if places and places[0].job_sequence == sequence:
            await self._fail_exhausted(run_id, sequence, deliveries)
        elif not places or places[0].job_sequence is not None:
            await self._jobs.remove(sequence)  # there is no such run, or it has another job
        # Else the ledger does not know yet whether this is the run's job: the sweeper checks when it does.

    async def _fail_exhausted(
        self, run_id: str, sequence: int, deliveries: int | None, *, revision: int | None = None
    ) -> None:
        if await self._queued_again(run_id, sequence):
            return
        often = f"{deliveries} times, as often as PYOCO_CONSUMER_MAX_DELIVER allows" if deliveries else "too often"
        error = f"the job was delivered {often}, and no worker brought the run to an end"
        reason = DeadLetterReason.DELIVERIES_EXHAUSTED
        if await self._fail(run_id, reason, error, spare_holder=True, only_revision=revision):
            await self._jobs.remove(sequence)

    async def _queued_again(self, run_id: str, sequence: int) -> bool:
        """Queue a run again if workers that do not offer its flow have used up the deliveries of its job."""
        rows = await self._database.fetch(reads.run_with_documents(run_id))
        if not rows or not self._declined.may_still_come(run_id, rows[0].kind.flow_name, rows[0].kind.tag):
            return False
        stored = await self._runs.read(run_id, linearizable=True, lenient=True)
        if stored is None or stored.value.status is not RunStatus.PENDING or stored.value.is_held:
            return False
        if stored.value.interruptions:
            return False  # it was begun: a worker that offers its flow has used up deliveries, too
        why = "workers that do not offer its flow have used up the deliveries of its job"
        wanted = Redispatch(run_id, rows[0].dispatch, forgotten=False, now=time.time(), reason=_ELSEWHERE, why=why)
        with await repairing(self._database, run_id, _ELSEWHERE):
            if await self._commits.write(lost_runs.redispatch, wanted):
                self._metrics.repairs.labels(_ELSEWHERE).inc()
                self._on_requeue()
                about = {"run_id": run_id, "reason": _ELSEWHERE}
                logger.info("run %s is queued again: %s", run_id, why, extra=about)
        await self._jobs.remove(sequence)
        return True

    # The end -------------------------------------------------------------------------------------

    async def _fail(
        self,
        run_id: str,
        reason: DeadLetterReason,
        error: str,
        *,
        spare_holder: bool,
        only_revision: int | None = None,
    ) -> bool:
        """End the run as FAILED, or as CANCELLED if that was requested.

        False if it has ended, or its holder is to do it, or if it is not of `only_revision` any more.
        """
        before: RunSnapshot | None = None
        with ExitStack() as traced:

            async def end(there: RunSnapshot | None) -> RunSnapshot | None:
                nonlocal before
                # Read after the snapshot: a run is reopened in the ledger before it is reopened in KV.
                rows = await self._database.fetch(reads.run_with_documents(run_id))
                if not rows:
                    return None
                before = _snapshot_to_end(rows[0], there)
                if before.is_terminal or (before.is_held and spare_holder):
                    return None
                traced.close()
                traced.enter_context(await repairing(self._database, run_id, reason.value))
                status = RunStatus.CANCELLED if before.status is RunStatus.CANCELLING else RunStatus.FAILED
                return before.finish(status, now=time.time(), error=error, reason=reason)

            ended = await self._runs.change(run_id, end, only_revision=only_revision, lenient=True)
            if ended is None or not ended.is_new:
                return False
            assert before is not None
            # Looked up before the letter is sent: after that the run may be requeued and have another job.
            job = None if before.ack_subject else await self._jobs.place_of(run_id)
            # The job is removed last: as long as it exists, a worker that gets it sends a missing letter.
            await self._report(ended.value, reason, error)
            if before.ack_subject:
                await self._jobs.answer(run_id, before.ack_subject, b"+ACK")
            elif job is not None:
                await self._jobs.remove(job)
        return True

    async def _report(self, ended: RunSnapshot, reason: DeadLetterReason, error: str) -> None:
        self._metrics.repairs.labels(reason.value).inc()
        logger.warning(
            "run %s was ended: %s", ended.run_id, error, extra={"run_id": ended.run_id, "reason": reason.value}
        )
        decided = Decided(ended.run_id, time.time(), DecisionKind.EXPIRE, ended.attempt, error)
        if ended.status is RunStatus.FAILED:
            await self._send_letter(ended, reason, error)
        await self._commits.write(history.note_decisions, decided)

    async def _send_letter(self, ended: RunSnapshot, reason: DeadLetterReason, error: str) -> None:
        letter = DeadLetter(
            timestamp=time.time(),
            reason=reason,
            error=error,
            run_id=ended.run_id,
            flow_name=ended.flow_name,
            tag=ended.tag,
            tags=ended.tags,
            worker_id=ended.worker_id,
            attempt=ended.attempt,
            tenant_id=ended.tenant_id,
        )
        letter_id = dead_letter_id(ended.run_id, reopened=ended.reopened, attempt=ended.attempt, reason=reason)
        tag = ended.tag or self._settings.default_tag
        subject = self._settings.dlq_subject(tag)
        about = {**spans.about_letter(letter), **spans.about_message(subject, "send")}
        with span(spans.DEAD_LETTER_PUBLISH, about, kind=Kind.PRODUCER):
            await self._link.publish(subject, letter.encode(), {DEAD_LETTER_ID: letter_id})

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.log(logger, "an exhausted job could not be dealt with; the sweeper will", error)


def _snapshot_to_end(row: RunRow, there: RunSnapshot | None) -> RunSnapshot:
    """The run's snapshot in KV or, if KV has none that is possible, the one in the ledger."""
    waiting = waiting_snapshot_of(row)
    if there is None or not is_possible(row.known, there, now=time.time()):
        return waiting
    return there.with_facts_of(waiting)

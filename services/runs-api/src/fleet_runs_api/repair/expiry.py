"""Ends runs that are past their deadline, or whose job was delivered as often as the queue allows."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

import nats.errors
import nats.js.errors
import orjson
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fleet_contracts import spans
from fleet_contracts.dead_letter import DeadLetter, DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.names import DEAD_LETTER_ID, WireNames, dead_letter_id
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.logs.rate_limit import RateLimitedLog
from fleet_kit.nats.kv import Bucket, Entry
from fleet_kit.nats.link import NatsLink, WrongRevision
from fleet_kit.nats.messages import stored_message
from fleet_kit.telemetry.tracing import Kind, span

from ..dispatch.queued_jobs import QueuedJobs
from ..fold import history
from ..fold.history import Decided, DecisionKind
from ..ledger import reads
from ..ledger.database import Database
from ..ledger.documents import waiting_snapshot_of, with_facts_of
from ..ledger.texts import iso
from ..ledger.writer import GroupCommit
from ..metrics import RunsMetrics
from .possible import possible_snapshot
from .repairs import repair_each, repairing

logger = logging.getLogger(__name__)

_PAGE = 100
# A holder ends its overdue run itself. If it has not done so after this time, the run is ended here.
_HOLDER_SECONDS = 5.0
_ADVISORY = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
_QUEUE_GROUP = "runs-api"


class Expiry:
    def __init__(
        self,
        *,
        link: NatsLink,
        runs: Bucket,
        database: Database,
        commits: GroupCommit,
        names: WireNames,
        jobs: QueuedJobs,
        metrics: RunsMetrics,
    ) -> None:
        self._link = link
        self._runs = runs
        self._database = database
        self._commits = commits
        self._names = names
        self._jobs = jobs
        self._metrics = metrics
        self._advisories: Subscription | None = None
        self._working: set[asyncio.Task[None]] = set()
        self._failures = RateLimitedLog()

    # Deadlines -----------------------------------------------------------------------------------

    async def end_overdue(self) -> None:
        """End a page of runs whose deadline has passed."""
        now = time.time()
        overdue = await self._database.fetch(reads.overdue_runs(now, limit=_PAGE))
        await repair_each(self._database, partial(self._end_overdue, now=now), overdue)

    async def _end_overdue(self, row: Any, *, now: float) -> None:
        error = f"the run's deadline {iso(row.deadline_at)} passed before it ended"
        patience = row.deadline_at + _HOLDER_SECONDS
        await self._fail(row, DeadLetterReason.DEADLINE_EXCEEDED, error, spare_holder=now < patience)

    # Deliveries ----------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Subscribe to JetStream's advisories of jobs that reached max_deliver; a hook of the link."""
        if self._advisories is None:
            subject = f"{_ADVISORY}.{self._names.work_stream}.>"
            self._advisories = await self._link.client.subscribe(subject, queue=_QUEUE_GROUP, cb=self._on_advisory)

    async def stop(self) -> None:
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    async def end_if_exhausted(self, row: Any, revision: int) -> bool:
        """Fail a waiting run if JetStream will not deliver its job again; True if that is so.

        JetStream does not report this for a single message. But a job that was delivered before, while no delivery
        at all is unacknowledged now, is not redelivered. A run that has moved on from `revision` is left alone: a
        worker got its job.
        """
        try:
            info = await self._link.jetstream.consumer_info(
                self._names.work_stream, self._names.work_durable(row.tag)
            )
        except nats.js.errors.NotFoundError:
            return False  # no worker has ever served this tag
        except (nats.errors.Error, nats.js.errors.Error) as error:
            # The job exists. A queue that does not answer must not delay the runs of other tags.
            self._failures.log(
                logger, f"the queue of tag {row.tag} is looked at later", self._link.unavailable(error)
            )
            return False
        handed_out = info.delivered.stream_seq if info.delivered else 0
        if info.num_ack_pending or not row.job_sequence or row.job_sequence > handed_out:
            return False
        await self._fail_exhausted(row, row.job_sequence, info.config.max_deliver, revision=revision)
        return True

    async def _on_advisory(self, msg: Msg) -> None:
        advisory = orjson.loads(msg.data)
        self._spawn(self._end_exhausted(int(advisory["stream_seq"]), advisory.get("deliveries")))

    async def _end_exhausted(self, sequence: int, deliveries: int | None) -> None:
        message = await stored_message(self._link, self._names.work_stream, sequence)
        if message is None:
            return
        try:
            run_id = Job.decode(message.data).run_id
        except MalformedMessage:
            return  # a worker sends a dead letter for it
        rows = await self._database.fetch(reads.run_with_documents(run_id))
        if rows and rows[0].job_sequence == sequence:
            await self._fail_exhausted(rows[0], sequence, deliveries)
        elif not rows or rows[0].job_sequence is not None:
            await self._jobs.remove(sequence)  # there is no such run, or it has another job
        # Else the ledger does not know yet whether this is the run's job: the sweeper checks when it does.

    async def _fail_exhausted(
        self, row: Any, sequence: int, deliveries: int | None, *, revision: int | None = None
    ) -> None:
        often = f"{deliveries} times, as often as PYOCO_CONSUMER_MAX_DELIVER allows" if deliveries else "too often"
        error = f"the job was delivered {often}, and no worker brought the run to an end"
        reason = DeadLetterReason.DELIVERIES_EXHAUSTED
        if await self._fail(row, reason, error, spare_holder=True, only_revision=revision):
            await self._jobs.remove(sequence)

    # The end -------------------------------------------------------------------------------------

    async def _fail(
        self,
        row: Any,
        reason: DeadLetterReason,
        error: str,
        *,
        spare_holder: bool,
        only_revision: int | None = None,
    ) -> bool:
        """End the run as FAILED by compare-and-set; False if it has ended, or its holder is to do it.

        With `only_revision`: False also if the run is in another state than when the reason was found.
        """
        while True:
            entry = await self._runs.get(row.run_id)
            if only_revision is not None and (entry is None or entry.revision != only_revision):
                return False
            rows = await self._database.fetch(reads.run_with_documents(row.run_id))
            if not rows:
                return False
            snapshot = _snapshot_to_end(rows[0], entry)
            if snapshot.is_terminal or (snapshot.is_held and spare_holder):
                return False
            ack_subject = snapshot.ack_subject
            status = RunStatus.CANCELLED if snapshot.status is RunStatus.CANCELLING else RunStatus.FAILED
            ended = snapshot.finish(status, now=time.time(), error=error, reason=reason)
            # Read before the letter is sent: after that the run may be requeued and have another job.
            job = None if ack_subject else await self._jobs.place_of(row.run_id)
            with await repairing(self._database, row.run_id, reason.value):
                try:
                    if entry is None:
                        await self._runs.create(row.run_id, ended.encode())
                    else:
                        await self._runs.update(row.run_id, ended.encode(), revision=entry.revision)
                except WrongRevision:
                    continue
                # The job is removed last: as long as it exists, a worker that gets it sends a missing letter.
                await self._tell(ended, reason, error)
                if ack_subject:
                    await self._jobs.answer(row.run_id, ack_subject, b"+ACK")
                elif job is not None:
                    await self._jobs.remove(job)
            return True

    async def _tell(self, ended: RunSnapshot, reason: DeadLetterReason, error: str) -> None:
        self._metrics.repairs.labels(reason.value).inc()
        logger.warning(
            "run %s was ended: %s", ended.run_id, error, extra={"run_id": ended.run_id, "reason": reason.value}
        )
        decided = Decided(ended.run_id, time.time(), DecisionKind.EXPIRE, ended.attempt, error)
        if ended.status is RunStatus.FAILED:
            await self._send_letter(ended, reason, error)
        await self._commits.write(history.decide, decided)

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
        tag = ended.tag or self._names.default_tag
        subject = self._names.dlq_subject(tag)
        about = {**spans.about_letter(letter), **spans.about_message(subject, "send")}
        with span(spans.DEAD_LETTER_PUBLISH, about, kind=Kind.PRODUCER):
            await self._link.publish(subject, letter.encode(), {DEAD_LETTER_ID: letter_id})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.log(logger, "an exhausted job could not be dealt with; the sweeper will", error)


def _snapshot_to_end(row: Any, entry: Entry | None) -> RunSnapshot:
    """The run's snapshot in KV or, if KV has none that is possible, the one in the ledger.

    `row` is read after the entry: a run is reopened in the ledger before it is reopened in KV.
    """
    waiting = waiting_snapshot_of(row)
    if entry is None:
        return waiting
    try:
        return with_facts_of(waiting, possible_snapshot(row, entry))
    except MalformedMessage:
        return waiting

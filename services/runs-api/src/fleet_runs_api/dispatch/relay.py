"""The relay: sends the rows of the outbox to JetStream when they are due, and retries until it succeeds."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fleet_contracts import spans
from fleet_contracts.job import Job
from fleet_contracts.log_events import LogEvent
from fleet_contracts.names import NATS_MSG_ID, job_message_id
from fleet_contracts.problems import Problem
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.setup import problem_fields
from fleet_kit.nats.link import Ack, WriteDenied, WriteRefused, WrongRevision
from fleet_kit.telemetry.tracing import Kind, Span, is_recording, span

from ..errors import LedgerUnavailable
from ..ledger import outbox, reads
from ..ledger.documents import NewRun, waiting_snapshot_of
from ..ledger.outbox import PutOff, Sent, TakeDue
from ..ledger.rows import OutboxRow
from ..loop import Loop

logger = logging.getLogger(__name__)

_PAGE = 500


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A first dispatch that was sent and not acknowledged yet."""

    begun: float
    row: OutboxRow
    new: NewRun
    span: Span
    written: "asyncio.Future[Ack]"
    queued: "asyncio.Future[Ack]"


class Relay(Loop):
    interruption = "sending was interrupted"

    async def send(self, new: NewRun) -> int | None:
        """Write the first snapshot, then publish the job; its stream sequence, None if it was not acknowledged.

        The job is sent only after NATS has acknowledged the snapshot. A failure before that is raised, as is a job
        that JetStream refuses: then there is no job of this run, and none can arrive later. A job that was sent and
        not acknowledged may arrive at any time: such a run can no longer be withdrawn. Nor can a run whose job was
        denied, if its snapshot cannot be removed before a worker claims it.
        """
        begun = time.perf_counter()
        job = new.job
        with self._sending(job, dispatch=1):
            revision = await self._confirm_snapshot(new, await self._runs.create_nowait(new.snapshot))
            try:
                queued = await self._queue_nowait(job, new.payload, dispatch=1)
                sequence = (await queued).sequence
            except WriteDenied:
                if not await self._take_back(job.run_id, revision):
                    return None
                raise
            except WriteRefused:
                raise
            except NatsUnavailable as error:
                logger.info("the job of run %s may not have arrived and is sent again: %s", job.run_id, error)
                return None
        self._metrics.relay_seconds.observe(time.perf_counter() - begun)
        return sequence

    async def _take_back(self, run_id: str, revision: int) -> bool:
        """Remove the first snapshot, so that no worker can claim the run; False if that is not certain."""
        try:
            await self._runs.bucket.delete(run_id, revision=revision)
        except (WrongRevision, NatsUnavailable) as error:
            logger.info("run %s stays accepted: its snapshot could not be removed: %s", run_id, error)
            return False
        return True

    def sent(self, run_id: str, job_sequence: int) -> None:
        """Record in the ledger that the first dispatch was sent, without waiting for the commit."""
        future = self._commits.write_soon(outbox.mark_sent, Sent(run_id, 1, job_sequence), deferrable=True)
        future.add_done_callback(self._marked)

    def _marked(self, future: "asyncio.Future[None]") -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._failures.log(logger, "something that was sent could not be noted; it will be sent again", error)

    async def send_soon(self, run_id: str) -> None:
        """Have the relay send the first dispatch of a run as soon as it can. The run can no longer be withdrawn."""
        try:
            await self._commits.write(outbox.put_off, PutOff(outbox.DISPATCH, run_id, dispatch=1, due_at=time.time()))
        except LedgerUnavailable as error:
            self._failures.log(logger, "a dispatch is sent again later than it could be", error)
        self.wake()

    def cancel_carried(self, run_id: str) -> None:
        """Record in the ledger that KV has a request to cancel, without waiting for the commit."""
        future = self._commits.write_soon(outbox.clear_cancelled, run_id, deferrable=True)
        future.add_done_callback(self._marked)

    async def remove_traces(self, run_id: str) -> None:
        """Remove the snapshot that a withdrawn run may have left in KV: now, or when NATS is back."""
        try:
            self._link.require()
            await self._purge(run_id)
        except NatsUnavailable:
            logger.info("traces of withdrawn run %s will be removed when NATS is back", run_id)

    async def round(self) -> float:
        """Send all rows that are due."""
        while True:
            [due_at] = await self._database.fetch(reads.next_due())
            if due_at is None:
                return self.pause_seconds
            if (left := due_at - time.time()) > 0:
                return min(left, self.pause_seconds)
            await self.send_due()

    async def send_due(self) -> None:
        """Take a page of rows that are due and send them. A row that cannot be sent becomes due again later."""
        now = time.time()
        due = TakeDue(now, until=now + self._settings.relay_retry_sec, limit=_PAGE)
        taken = await self._commits.write(outbox.take_due, due)
        if taken and logger.isEnabledFor(logging.DEBUG):
            meta = {"queue": "outbox", "priority": 0, "leased_count": len(taken)}
            logger.debug("%d rows are due", len(taken), extra={"event": LogEvent.SCHEDULER, "meta": meta})
        rows = await self._database.fetch(reads.outbox_rows(taken))
        fresh = [row for row in rows if _is_fresh(row)]
        rest = [row for row in rows if not _is_fresh(row)]
        await asyncio.gather(self._send_fresh(fresh), *(self._send_row(row) for row in rest))

    async def _send_fresh(self, rows: Sequence[OutboxRow]) -> None:
        """Send first dispatches, all in flight at once: a run that the relay has taken cannot be withdrawn.

        The server processes them in the order sent. A worker that gets a job earlier waits for the snapshot.
        """
        in_flight: list[_InFlight] = []
        try:
            for row in rows:
                assert row.run is not None
                begun = time.perf_counter()
                new = NewRun.of_row(row.run)
                sending = self._sending(new.job, dispatch=1)
                try:
                    with sending.active():
                        written = await self._runs.create_nowait(new.snapshot)
                        queued = await self._queue_nowait(new.job, new.payload, dispatch=1)
                        in_flight.append(_InFlight(begun, row, new, sending, written, queued))
                except NatsUnavailable as error:
                    sending.fail(type(error).__name__, str(error))
                    sending.end()
                    raise
        except NatsUnavailable as error:
            self._put_off(rows[len(in_flight) :], error)
        marks = []
        for sent in in_flight:
            try:
                with sent.span:
                    sequence = await self._confirm(sent)
            except NatsUnavailable as error:
                self._put_off([sent.row], error)
            else:
                self._metrics.relay_seconds.observe(time.perf_counter() - sent.begun)
                marks.append(self._commits.write_soon(outbox.mark_sent, Sent(sent.row.run_id, 1, sequence)))
        await asyncio.gather(*marks)

    async def _queue_nowait(self, job: Job, payload: bytes, *, dispatch: int) -> "asyncio.Future[Ack]":
        return await self._link.publish_nowait(
            self._settings.work_subject(job.tag), payload, {NATS_MSG_ID: job_message_id(job.run_id, dispatch)}
        )

    async def _confirm(self, sent: _InFlight) -> int:
        try:
            await self._confirm_snapshot(sent.new, sent.written)
        except NatsUnavailable:
            sent.queued.cancel()
            raise
        return (await sent.queued).sequence

    async def _confirm_snapshot(self, new: NewRun, written: "asyncio.Future[Ack]") -> int:
        """The revision of the snapshot."""
        try:
            return (await written).sequence
        except WrongRevision:
            # KV has the snapshot already (this is a repeated send), or the marker of a deleted one.
            return (await self._runs.announce(new.snapshot)).revision

    async def _send_row(self, row: OutboxRow) -> None:
        try:
            if row.kind == outbox.WITHDRAW:
                await self._purge(row.run_id)
                return
            run = row.unfinished  # None: withdrawn or ended since, so that there is nothing to send
            if row.kind == outbox.CANCEL:
                if run is not None:
                    await self._runs.announce(waiting_snapshot_of(run))
                self.cancel_carried(row.run_id)
                return
            sequence = 0
            if run is not None:
                begun = time.perf_counter()
                job = Job.decode(payload := run.job.encode())
                with self._sending(job, dispatch=row.dispatch):
                    # In this order: a job that arrives before the reopened snapshot would count as finished.
                    await self._runs.announce(waiting_snapshot_of(run))
                    queued = await self._queue_nowait(job, payload, dispatch=row.dispatch)
                    sequence = (await queued).sequence
                self._metrics.relay_seconds.observe(time.perf_counter() - begun)
            await self._commits.write(outbox.mark_sent, Sent(row.run_id, row.dispatch, sequence))
        except NatsUnavailable as error:
            self._put_off([row], error)

    def _sending(self, job: Job, *, dispatch: int) -> Span:
        """A span in the trace of the request that submitted the run, at any time and from any replica."""
        if not is_recording():
            return span(spans.RUN_RELAY, parent=job.trace_context)
        about = {
            **spans.about_run(job),
            **spans.about_message(self._settings.work_subject(job.tag), "send"),
            spans.DISPATCH: dispatch,
        }
        return span(spans.RUN_RELAY, about, kind=Kind.PRODUCER, parent=job.trace_context)

    def _log_failure(self, row: OutboxRow, error: NatsUnavailable) -> None:
        if row.run is not None:  # else the row only removes the snapshot of a withdrawn run
            self._metrics.relay_failures.inc()
        trace = None if row.run is None else Job.decode(row.run.job.encode()).trace_context
        with Span(trace):
            logger.warning(
                "could not send run %s, trying again: %s",
                row.run_id,
                error,
                extra={"run_id": row.run_id, **problem_fields(Problem.NATS_UNAVAILABLE)},
            )

    def _put_off(self, rows: Sequence[OutboxRow], error: NatsUnavailable) -> None:
        """Retry rows soon, of which the first one has failed. One that JetStream refused is due at its usual time."""
        self._log_failure(rows[0], error)
        if isinstance(error, WriteRefused):
            return
        due_at = time.time() + self.pause_seconds
        for row in rows:
            later = PutOff(row.kind, row.run_id, row.dispatch, due_at)
            self._commits.write_soon(outbox.put_off, later, deferrable=True).add_done_callback(self._marked)

    async def _purge(self, run_id: str) -> None:
        await self._runs.bucket.delete(run_id)
        await self._commits.write(outbox.clear_withdrawn, run_id)


def _is_fresh(row: OutboxRow) -> bool:
    """Whether the row is a first dispatch that, according to the ledger, was never sent."""
    run = row.unfinished
    return row.kind == outbox.DISPATCH and row.dispatch == 1 and run is not None and run.snapshot is None

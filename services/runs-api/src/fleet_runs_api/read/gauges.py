"""Gauges whose values come from the ledger and JetStream; a scrape refreshes them."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from fleet_contracts.names import kv_stream, kv_subject
from fleet_kit.errors import FleetError
from fleet_kit.nats.messages import messages_of
from fleet_kit.nats.outages import OUTAGES
from fleet_kit.telemetry.metrics import OTHER

from ..dispatch.queues import queue_of
from ..ledger import reads
from ..live.workers import NOBODY, FleetView
from ..resources import Part, Resources

logger = logging.getLogger(__name__)

# The ledger and JetStream are queried at most once in this time, however many clients scrape.
_FRESH_SECONDS = 2.0
# Timeout for each of the two, so that a scrape is not held up; after it the source counts as unavailable.
_TIMEOUT_SECONDS = 3.0
_MOST_TAGS = 100
# Counting stops here, as the help text of these gauges says.
_MOST_COUNTED = 10_000
_AWAY = (FleetError, *OUTAGES)


class FleetGauges(Part):
    def __init__(self, shared: Resources, *, workers: FleetView) -> None:
        super().__init__(shared)
        self._workers = workers
        self._asking = asyncio.Lock()
        self._asked_at = float("-inf")

    async def show_fleet(self) -> None:
        """Update the spec's series; NatsUnavailable or LedgerUnavailable if one of the sources is unavailable."""
        self._link.require()
        await self._show_totals()
        await self._show_streams()

    async def refresh(self) -> None:
        """Update all gauges. Those whose source is unavailable are cleared or set to NaN."""
        async with self._asking:
            if time.monotonic() - self._asked_at < _FRESH_SECONDS:
                return
            ledger_answers, streams_answer = await asyncio.gather(
                self._try(self._show_totals, self._show_backlog),
                self._try(self._show_streams, self._show_ingest, self._show_queues),
            )
            self._metrics.ledger_up.set(float(ledger_answers))
            if not ledger_answers:
                self._metrics.forget_ledger()
            if not streams_answer:
                self._metrics.forget_streams()
            self._asked_at = time.monotonic()

    async def _try(self, *looks: Callable[[], Awaitable[None]]) -> bool:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                for look in looks:
                    await look()
        except _AWAY as error:
            logger.debug("metrics could not be brought up to date: %s", error)
            return False
        return True

    # From the ledger ----------------------------------------------------------------------------

    async def _show_totals(self) -> None:
        totals = await self._database.fetch(reads.totals_by_status())
        self._metrics.show_totals(dict(totals))
        [letters] = await self._database.fetch(reads.open_letters_of_all(most=_MOST_COUNTED))
        self._metrics.open_letters.set(letters)

    async def _show_backlog(self) -> None:
        now = time.time()
        changed = await self._database.fetch(reads.oldest_held_change())
        self._metrics.oldest_heartbeat.set(max(now - changed[0], 0.0) if changed else 0.0)
        [due] = await self._database.fetch(reads.count_due(now, most=_MOST_COUNTED))
        self._metrics.outbox_due.set(due)
        [since] = await self._database.fetch(reads.due_longest())
        self._metrics.outbox_oldest.set(0.0 if since is None else max(now - since, 0.0))

    # From JetStream -----------------------------------------------------------------------------

    async def _show_streams(self) -> None:
        self._link.require()
        self._metrics.workers_alive.set(self._workers.alive_count(now=time.time()))
        stream = await self._link.stream_info(self._settings.dlq_stream)
        self._metrics.dead_letters.set(stream.state.messages)

    async def _show_ingest(self) -> None:
        stream = kv_stream(self._settings.runs_kv_bucket)
        consumer = await self._link.jetstream.consumer_info(stream, self._settings.ingest_durable())
        pending = (consumer.num_pending or 0) + (consumer.num_ack_pending or 0)
        self._metrics.ingest_pending.set(pending)
        known = consumer.ack_floor.stream_seq if consumer.ack_floor is not None else 0
        age = (
            await self._age(stream, kv_subject(self._settings.runs_kv_bucket, ">"), after=known) if pending else None
        )
        self._metrics.ingest_oldest.set(age or 0.0)

    async def _show_queues(self) -> None:
        """Show the queue of each tag. The stream's subjects include tags with work that no worker serves."""
        names, now = self._settings, time.time()
        info = await self._link.jetstream.stream_info(names.work_stream, subjects_filter=names.work_subject("*"))
        prefix = names.work_subject("")
        in_stream = {subject.removeprefix(prefix): count for subject, count in (info.state.subjects or {}).items()}
        served = self._workers.capacities(now=now)
        # Chosen at every refresh, served tags first: invented tags must not displace those that workers serve.
        tags = sorted({*in_stream, *served}, key=lambda tag: (tag not in served, -in_stream.get(tag, 0), tag))
        named, rest = tags[:_MOST_TAGS], tags[_MOST_TAGS:]
        looked = await asyncio.gather(
            *(self._look_at(tag, in_stream.get(tag, 0), held=served.get(tag, NOBODY).held) for tag in named)
        )
        metrics = self._metrics
        metrics.forget_tags()
        for tag, (waiting, taken, age) in zip(named, looked, strict=True):
            metrics.queue_jobs.labels(tag, "waiting").set(waiting)
            metrics.queue_jobs.labels(tag, "taken").set(taken)
            metrics.queue_oldest.labels(tag).set(age)
            metrics.queue_workers.labels(tag).set(served.get(tag, NOBODY).workers)
            metrics.queue_free_slots.labels(tag).set(served.get(tag, NOBODY).free_slots)
        if rest:
            # The other tags share one series: the sum of their jobs, and the workers of the tag that has the fewest.
            metrics.queue_jobs.labels(OTHER, "waiting").set(sum(in_stream.get(tag, 0) for tag in rest))
            metrics.queue_workers.labels(OTHER).set(min(served.get(tag, NOBODY).workers for tag in rest))

    async def _look_at(self, tag: str, jobs: int, *, held: int) -> tuple[int, int, float]:
        """Of one tag: waiting jobs, jobs that workers hold, and the age in seconds of the oldest waiting job."""
        names = self._settings
        taken = delivered = 0
        if (queue := await queue_of(self._link, names, tag)) is not None:
            # JetStream counts a job that was handed back as unacknowledged until it is redelivered.
            taken = min(queue.num_ack_pending or 0, held)
            delivered = queue.delivered.stream_seq if queue.delivered is not None and taken else 0
        waiting = max(jobs - taken, 0)
        age = await self._age(names.work_stream, names.work_subject(tag), after=delivered) if waiting else None
        return waiting, taken, age or 0.0

    async def _age(self, stream: str, subject: str, *, after: int) -> float | None:
        """Age in seconds of the first message after a stream sequence; None if there is none."""
        messages = await messages_of(self._link, stream, subject, after=after, limit=1)
        return max(time.time() - messages[0].stored_at, 0.0) if messages else None

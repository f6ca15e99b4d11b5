"""The ingest: folds every change of a snapshot in KV into the ledger, in batches, and resumes where it stopped."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from nats.aio.msg import Msg

from fleet_contracts import spans
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.names import NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, kv_key, kv_stream
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.trace_context import TraceContext
from fleet_kit.nats.pull import stored_at_of, stream_sequence_of
from fleet_kit.telemetry.tracing import Kind, Span, is_recording, span

from ..errors import LedgerUnavailable
from ..ledger import reads
from ..live.consumer import SharedConsumer
from ..loop import Loop
from ..resources import Resources
from . import recording
from .recording import Observation

logger = logging.getLogger(__name__)

_BATCH = 256
# How long changes are gathered, by which the ledger lags behind KV. A snapshot that is replaced in this time is not
# delivered: of a short run only the end is.
_GATHER_SECONDS = 0.03
# A first snapshot written within this time after acceptance is skipped; a later one is compared with the ledger.
_FIRST_SNAPSHOT_SECONDS = 60.0


class Ingest(Loop):
    """Replicas share one durable consumer on the bucket's stream, so each change is folded once."""

    interruption = "snapshots are folded in later"
    pause_seconds = 0.2

    def __init__(self, shared: Resources, *, on_retry: Callable[[], None]) -> None:
        """`on_retry` is called after a commit that may have put the next attempt of a run into the outbox."""
        super().__init__(shared)
        self._on_retry = on_retry
        self.consumer = SharedConsumer(
            self._link,
            stream=kv_stream(self._settings.runs_kv_bucket),
            durable=self._settings.ingest_durable(),
            batch=_BATCH,
        )

    async def round(self) -> float:
        """Wait for a first change, then gather and fold until there are no more. A failed one is redelivered."""
        messages = await self.consumer.take(1)
        while messages:
            if len(messages) < _BATCH:
                await asyncio.sleep(_GATHER_SECONDS)
                messages += await self.consumer.take_now(_BATCH)
            await self._fold(messages)
            messages = await self.consumer.take_now(_BATCH)
        return 0.0

    async def _fold(self, messages: list[Msg]) -> None:
        # Of several changes of one run only the last one is needed.
        latest = {msg.subject: msg for msg in messages}
        begun_at = time.time()
        observations = [seen for msg in latest.values() if (seen := self._observation(msg)) is not None]
        if observations:
            changed, refused = await self._record(observations)
            await self._remove_after_the_end(observations, changed)
            self._failures.recovered()
            self._metrics.note_changes(seen.snapshot for seen in changed)
            for seen in observations:
                self._metrics.snapshot_bytes.observe(len(seen.text))
            self._metrics.ingest_lag.observe(max(time.time() - stored_at_of(messages[0]), 0.0))
            if any(seen.snapshot.retry_of_attempt is not None for seen in changed):
                self._on_retry()
            if is_recording():
                _trace(observations, refused, begun_at)
        if removed := [kv_key(self._settings.runs_kv_bucket, msg.subject) for msg in latest.values() if not msg.data]:
            await self._commits.write(recording.note_removed, removed)
        for msg in messages:
            await self._link.send(msg.reply, b"+ACK")

    def _observation(self, msg: Msg) -> Observation | None:
        if not msg.data:
            return None  # a deletion marker: the ledger keeps the run, and the sweeper puts the snapshot back
        try:
            snapshot = RunSnapshot.decode_of(kv_key(self._settings.runs_kv_bucket, msg.subject), msg.data)
        except MalformedMessage as error:
            with Span(TraceContext.of_headers(msg.headers)):
                logger.warning("a snapshot cannot be read: %s", error, extra={"meta": {"subject": msg.subject}})
            return None
        if snapshot.status is RunStatus.PENDING and snapshot.attempt == 0 and _is_first(snapshot.run_id, msg):
            return None  # the first snapshot, written by this service: the ledger has this state already
        return Observation(snapshot, stream_sequence_of(msg), msg.data.decode(), TraceContext.of_headers(msg.headers))

    async def _remove_after_the_end(
        self, observations: Sequence[Observation], changed: Sequence[Observation]
    ) -> None:
        """Erase snapshots from KV that were written after the end in the ledger; from then on the ledger answers.

        The snapshot of a run that was reopened since has a newer revision and stays.
        """
        news = {id(seen) for seen in changed}
        old = {seen.snapshot.run_id: seen for seen in observations if id(seen) not in news}
        for row in await self._database.fetch(reads.ended_among(list(old))) if old else ():
            if (seen := old[row.run_id]).revision != row.revision:
                await self._runs.bucket.erase(row.run_id, up_to=seen.revision)

    async def _record(self, observations: Sequence[Observation]) -> tuple[Sequence[Observation], dict[str, str]]:
        """Fold in snapshots together or, if that fails, one by one, so that a bad one does not block the others.

        Returns those that changed the ledger, and the runs whose snapshots were refused, with the type of the error.
        """
        try:
            return await self._commits.write(recording.record, observations), {}
        except LedgerUnavailable:
            raise
        except Exception:
            logger.warning("%d snapshots could not be folded in together", len(observations), exc_info=True)
        changed: list[Observation] = []
        refused: dict[str, str] = {}
        for seen in observations:
            try:
                changed += await self._commits.write(recording.record, [seen])
            except LedgerUnavailable:
                raise
            except Exception as error:
                run_id = seen.snapshot.run_id
                refused[run_id] = type(error).__name__
                with Span(seen.trace):
                    logger.exception("a snapshot of run %s cannot be folded in", run_id, extra={"run_id": run_id})
        return changed, refused


def _is_first(run_id: str, msg: Msg) -> bool:
    """Whether it is the first snapshot of its run, for which the ledger need not be read.

    A write that expects revision 0 replaces no snapshot. The run id begins with the time of acceptance, so that a
    late write is recognized.
    """
    if (msg.headers or {}).get(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE) != "0":
        return False
    try:
        accepted_at = (uuid.UUID(run_id).int >> 80) / 1000
    except ValueError:
        return False
    return stored_at_of(msg) - accepted_at < _FIRST_SNAPSHOT_SECONDS


def _trace(observations: list[Observation], refused: Mapping[str, str], begun_at: float) -> None:
    """Record a span for each change that was written within a trace; heartbeats are written without one."""
    for seen in observations:
        if seen.trace is not None:
            about = {
                **spans.about_run(seen.snapshot),
                spans.ATTEMPT: seen.snapshot.attempt,
                spans.RUN_STATUS: seen.snapshot.status.value,
                spans.SNAPSHOT_REVISION: seen.revision,
            }
            traced = span(spans.RUN_INGEST, about, kind=Kind.CONSUMER, parent=seen.trace, begun_at=begun_at)
            if (error_type := refused.get(seen.snapshot.run_id)) is not None:
                # Without its message: a database error quotes the data.
                traced.fail(error_type)
            traced.end()

"""The ingest of dead letters: writes every message of the dead letter stream to the ledger, once."""

import asyncio
import logging
import time
from collections.abc import Sequence

from nats.aio.msg import Msg
from sqlalchemy.exc import DataError, IntegrityError

from fleet_contracts import spans
from fleet_contracts.log_events import LetterMove
from fleet_contracts.names import DEAD_LETTER_ID, NATS_MSG_ID
from fleet_contracts.status import RunStatus
from fleet_contracts.trace_context import TraceContext
from fleet_kit.nats.pull import stored_at_of, stream_sequence_of
from fleet_kit.telemetry.tracing import Kind, Span, is_recording, span

from ..fold import recording
from ..fold.recording import Observation
from ..live.consumer import SharedConsumer
from ..loop import Loop
from ..resources import Resources
from . import reads as dead_letter_reads
from . import writes as dead_letter_writes
from .letter import Arrived, Letter, Moved, RejectedLetter, read_letter
from .writes import TooOld

logger = logging.getLogger(__name__)

_BATCH = 200
_FORGET_EVERY_SECONDS = 60.0
_FORGET_PAGE = 500


class DeadLetterIngest(Loop):
    """Replicas share one durable consumer. A message is acknowledged when its letter is on disk."""

    interruption = "dead letters are taken in later"
    pause_seconds = 0.5

    def __init__(self, shared: Resources) -> None:
        super().__init__(shared)
        self.consumer = SharedConsumer(
            self._link, stream=self._settings.dlq_stream, durable=self._settings.dlq_durable(), batch=_BATCH
        )
        self._messages: list[Msg] = []
        self._forgotten_at = 0.0

    async def round(self) -> float:
        # Messages that could not be written are kept: writing a letter twice changes nothing.
        self._messages = self._messages or await self.consumer.take(_BATCH)
        await self._enter(self._messages)
        self._messages = []
        await self._forget_old()
        return 0.0

    async def _enter(self, messages: list[Msg]) -> None:
        begun_at = time.time()
        letters = [self._read(msg) for msg in messages]
        await self._catch_up(letters)
        # Separate writes that share a commit: a letter that the database refuses then fails alone.
        writes = [self._commits.write_soon(dead_letter_writes.enter, letter) for letter in letters]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        failure: BaseException | None = None
        for msg, letter, outcome in zip(messages, letters, outcomes, strict=True):
            with Span(TraceContext.of_headers(msg.headers)):
                match outcome:
                    case Moved():
                        outcome.log(LetterMove.ENTERED)
                        self._metrics.count_letter(outcome.reason)
                    case RejectedLetter():
                        logger.warning(
                            "a dead letter on %s is left out: the run it names has not failed there",
                            msg.subject,
                            extra={"meta": {"stream_sequence": stream_sequence_of(msg)}},
                        )
                    case DataError() | IntegrityError():
                        logger.error("the ledger cannot hold a dead letter: %s", letter.message_id, exc_info=outcome)
                    case BaseException():
                        failure = outcome
        if failure is not None:
            raise failure
        if is_recording():
            for msg, letter in zip(messages, letters, strict=True):
                _trace(msg, letter, begun_at)
        for msg in messages:
            await self._link.send(msg.reply, b"+ACK")

    async def _catch_up(self, letters: Sequence[Letter]) -> None:
        """Fold in the failures of the named runs. Workers write them to KV before the letter; the ingest may lag."""
        named = {letter.run_id for letter in letters if letter.run_id is not None}
        for run_id in await self._database.fetch(dead_letter_reads.unfinished(named)) if named else []:
            stored = await self._runs.read(run_id, linearizable=True, lenient=True)
            if stored is not None and stored.value.status is RunStatus.FAILED:
                changed = await self._commits.write(recording.record, [Observation.of(stored)])
                self._metrics.note_changes(observation.snapshot for observation in changed)

    def _read(self, msg: Msg) -> Letter:
        headers = msg.headers or {}
        arrived = Arrived(
            data=msg.data,
            subject=msg.subject,
            sequence=stream_sequence_of(msg),
            stored_at=stored_at_of(msg),
            # Workers of earlier versions and peers send only the second header.
            given_id=headers.get(DEAD_LETTER_ID) or headers.get(NATS_MSG_ID),
        )
        return read_letter(arrived, tag=msg.subject.removeprefix(self._settings.dlq_subject("")))

    async def _forget_old(self) -> None:
        """Delete old letters; closed ones only after the stream has dropped their messages.

        Until then the row is needed to recognize the letter if the stream delivers it again.
        """
        if time.monotonic() - self._forgotten_at < _FORGET_EVERY_SECONDS:
            return
        settings = self._settings
        now = time.time()
        kept_sec = max(settings.runs_retention_sec, settings.dlq_max_age_sec) if settings.runs_retention_sec else None
        wanted = TooOld(
            closed_before=now - settings.dlq_max_age_sec,
            open_before=None if kept_sec is None else now - kept_sec,
            limit=_FORGET_PAGE,
        )
        # A full page means that there may be more, so the next round continues.
        if await self._commits.write(dead_letter_writes.forget, wanted) < _FORGET_PAGE:
            self._forgotten_at = time.monotonic()


def _trace(msg: Msg, letter: Letter, begun_at: float) -> None:
    if (trace := TraceContext.of_headers(msg.headers)) is not None:
        span(
            spans.DEAD_LETTER_INGEST, spans.about_letter(letter), kind=Kind.CONSUMER, parent=trace, begun_at=begun_at
        ).end()

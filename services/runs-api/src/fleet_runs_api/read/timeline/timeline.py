"""The timeline of a run: its events and the output of its tasks, read page by page from the events stream."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Set
from dataclasses import dataclass

from fleet_contracts.events import EventKind, RunEvent, RunEvents
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.names import WireNames
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import TERMINAL_RUN_STATUSES
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.messages import StoredMessage, last_message, messages_of, stream_identity

from ...resources import Part, Resources
from ..event_ids import EventId
from ..views import RunViews, Writer

logger = logging.getLogger(__name__)

# How much a reader fetches at a time. The message that reaches the limit may be larger, up to NATS's maximum payload.
_READ_MESSAGES = 64
_READ_BYTES = 128 * 1024
# The limit for all texts on one page of events.
_PAGE_CHARACTERS = 1024 * 1024
# A position is the sequence of a batch in the stream and, in the lower bits, how many of its events were read. A
# worker's batch (256 KiB) has far fewer events than fit, and all of it fits into the integers of JavaScript.
_INDEX_BITS = 16
# How long a response that was begun waits for NATS to come back.
_TIMEOUT_SECONDS = 30.0
_RETRY_SECONDS = 0.5

# Given writers, returns those that have executed the run, and perhaps more.
FindWriters = Callable[[Set[Writer]], Awaitable[Set[Writer]]]


@dataclass(frozen=True, slots=True)
class Entry:
    # Where to continue after this entry.
    position: int
    attempt: int
    worker_id: str | None
    event: RunEvent


@dataclass(frozen=True, slots=True)
class LogFilter:
    """A filter for output; None matches any."""

    task: str | None = None
    stream: str | None = None
    attempt: int | None = None

    def chosen(self, entries: list[Entry]) -> list[Entry]:
        return [entry for entry in entries if self._takes(entry)]

    def _takes(self, entry: Entry) -> bool:
        return (
            entry.event.kind is EventKind.LOG
            and self.task in (None, entry.event.task)
            and self.stream in (None, entry.event.stream)
            and self.attempt in (None, entry.attempt)
        )


@dataclass(frozen=True, slots=True)
class EventsPage:
    # The stream to which the positions belong.
    store: str
    entries: list[Entry]
    # Where to continue; None if there are no more events now.
    next: int | None
    # The stream no longer has the beginning.
    truncated: bool
    # How many batches were lost before they were stored, as far as this page shows.
    missing_batches: int


class TimelineReader:
    """Reads a run's timeline from a position on, without keeping what it has read.

    Any worker may write events of any run under its own name. Events of workers that have not executed the run are
    left out.
    """

    def __init__(
        self, link: NatsLink, names: WireNames, run_id: str, *, find_writers: FindWriters, position: int = 0
    ) -> None:
        self._link = link
        self._names = names
        self._run_id = run_id
        self._find_writers = find_writers
        self._writers: Set[Writer] = set()
        self._stream = names.events_stream
        self._subject = names.events_subject("*", run_id)
        self._begun_at, self._read_before = divmod(position, 1 << _INDEX_BITS)
        # The batch at the position is read again: for its other events, and to detect a repeat or a gap after it.
        self._sequence = max(self._begun_at - 1, 0)
        self._last_batch: dict[tuple[int, str], int] = {}
        # The position may be from a stream that was lost and created again, so that its sequences start again.
        self._is_doubtful = position > 0
        self._reconnects = link.reconnects
        self.missing_batches = 0
        # The latest attempt whose end has been read.
        self.ended_attempt = 0

    def from_the_beginning(self) -> "TimelineReader":
        return TimelineReader(self._link, self._names, self._run_id, find_writers=self._find_writers)

    async def read(self) -> list[Entry]:
        """The next entries; empty if there are no more now. After NatsUnavailable the position is unchanged."""
        while True:
            self._link.require()
            messages = await messages_of(
                self._link,
                self._stream,
                self._subject,
                after=self._sequence,
                limit=_READ_MESSAGES,
                max_bytes=_READ_BYTES,
            )
            if not messages and not await self._starts_over():
                return []
            batches = [_decoded(message, self._names) for message in messages]
            writers = {(batch.attempt, batch.worker_id) for batch in batches if batch is not None}
            if not writers <= self._writers:
                self._writers = await self._find_writers(writers)
            pairs = zip(messages, batches, strict=True)
            if entries := [entry for message, batch in pairs for entry in self._entries(message, batch)]:
                return entries

    async def _starts_over(self) -> bool:
        """Go back to the beginning if the stream ends before the position; True if so."""
        if self._reconnects == self._link.reconnects and not self._is_doubtful:
            return False
        reconnects = self._link.reconnects
        last = await last_message(self._link, self._stream, self._subject, linearizable=True)
        self._is_doubtful, self._reconnects = False, reconnects
        if self._sequence == 0 or (last is not None and last.sequence >= self._sequence):
            return False
        self._sequence = self._begun_at = 0
        return True

    def _entries(self, message: StoredMessage, batch: RunEvents | None) -> Iterator[Entry]:
        self._sequence = message.sequence
        self._is_doubtful = False
        if batch is None or (batch.attempt, batch.worker_id) not in self._writers or self._is_repeat(batch):
            return
        read_before = self._read_before if message.sequence == self._begun_at else 0
        for number, event in enumerate(batch.events, 1):
            if event.kind is EventKind.RUN and event.status in TERMINAL_RUN_STATUSES:
                self.ended_attempt = max(self.ended_attempt, batch.attempt)
            if number > read_before:
                position = (message.sequence << _INDEX_BITS) + number
                yield Entry(position, batch.attempt, batch.worker_id, event)

    def _is_repeat(self, batch: RunEvents) -> bool:
        """Whether the batch was read before. Workers number their batches; missing numbers are counted."""
        if batch.worker_id is None:
            return False
        writer = (batch.attempt, batch.worker_id)
        before = self._last_batch.get(writer, batch.batch - 1)
        if batch.batch <= before:
            return True
        self.missing_batches += batch.batch - before - 1
        self._last_batch[writer] = batch.batch
        return False


def _decoded(message: StoredMessage, names: WireNames) -> RunEvents | None:
    """Decode a batch. Its writer is taken from the subject, which NATS has checked."""
    try:
        batch = RunEvents.decode(message.data)
        return batch.model_copy(update={"worker_id": names.writer_of_events(message.subject)})
    except MalformedMessage as error:
        logger.warning("events of a run cannot be read and are not shown: %s", error)
        return None


class Timeline(Part):
    def __init__(self, shared: Resources, *, views: RunViews) -> None:
        super().__init__(shared)
        self._views = views

    def reader(self, run_id: str, *, tenant_id: str, position: int = 0) -> TimelineReader:
        return TimelineReader(
            self._link,
            self._settings,
            run_id,
            find_writers=lambda wanted: self._views.writers(run_id, tenant_id=tenant_id, wanted=wanted),
            position=position,
        )

    async def identify(self) -> str:
        """The identity of the events stream, to which positions belong."""
        return await stream_identity(self._link, self._settings.events_stream)

    async def page(
        self, run_id: str, *, tenant_id: str, attempt: int | None, after: EventId | int, limit: int
    ) -> EventsPage:
        """The events after a position, of one attempt or all. A position in a lost stream counts as the beginning."""
        snapshot = await self._views.find(run_id, tenant_id=tenant_id)
        truncated = await self._is_truncated(snapshot)
        store = await self.identify()
        position = after if isinstance(after, int) else after.place if after.store == store else 0
        reader = self.reader(run_id, tenant_id=tenant_id, position=position)
        entries: list[Entry] = []
        characters = 0
        while read := await reader.read():
            for entry in read:
                if attempt not in (None, entry.attempt):
                    continue
                characters += len(entry.event.text or "")
                if entries and (len(entries) == limit or characters > _PAGE_CHARACTERS):
                    return EventsPage(store, entries, entries[-1].position, truncated, reader.missing_batches)
                entries.append(entry)
        return EventsPage(store, entries, None, truncated, reader.missing_batches)

    async def log(self, run_id: str, *, tenant_id: str, wanted: LogFilter) -> AsyncIterator[list[Entry]]:
        """The run's output so far; RunNotFound and NatsUnavailable are raised before the first page."""
        await self._views.find(run_id, tenant_id=tenant_id)
        reader = self.reader(run_id, tenant_id=tenant_id)
        return self._rest_of_log(reader, await reader.read(), wanted)

    async def _rest_of_log(
        self, reader: TimelineReader, read: list[Entry], wanted: LogFilter
    ) -> AsyncIterator[list[Entry]]:
        while read:
            if chosen := wanted.chosen(read):
                yield chosen
            read = await self._read_within_limit(reader)

    async def _read_within_limit(self, reader: TimelineReader) -> list[Entry]:
        """Retry while NATS is unavailable: a response that was begun cannot become an error, only be cut off."""
        give_up_at = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                return await reader.read()
            except NatsUnavailable:
                if time.monotonic() >= give_up_at:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    async def _is_truncated(self, snapshot: RunSnapshot) -> bool:
        stream, subject = self._settings.events_stream, self._settings.events_subject("*", snapshot.run_id)
        first = await messages_of(self._link, stream, subject, limit=1)
        if not first:
            return snapshot.is_terminal and snapshot.attempt > 0
        try:
            batch = RunEvents.decode(first[0].data)
        except MalformedMessage:
            return True
        return batch.attempt > 1 or batch.batch > 0

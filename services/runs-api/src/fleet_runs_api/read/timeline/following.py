"""Follows the output of a run: notified of new output at once, and reading it at the follower's own pace."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.errors import FleetError, NatsUnavailable
from fleet_kit.waiting import is_set_within

from ...resources import Part, Resources
from ..event_ids import EventId
from ..watching.one_run import State, Watching
from .timeline import Entry, LogFilter, Timeline, TimelineReader

logger = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 10.0
# A notification may come before the stream has stored the output: the follower reads again soon, then less and less
# often.
_SHORTEST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_OUTAGE_PAUSE_SECONDS = 0.5
# How long to wait for the last output after the end of a run; some runs end without an event that says so.
_LAST_OUTPUT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class End:
    status: RunStatus
    attempt: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Output:
    # The stream to which the entries' positions belong.
    store: str
    entries: list[Entry]


@dataclass(slots=True, eq=False)
class _Follower:
    """The notifications of a follower: that there may be new output, and how the run ended."""

    bell: asyncio.Event = field(default_factory=asyncio.Event)
    ended: RunSnapshot | None = None
    ended_at: float = 0.0
    # Watching failed, so the follower would miss the end of the run.
    is_lost: bool = False

    def has_all_output(self, reader: TimelineReader, ended: RunSnapshot) -> bool:
        return reader.ended_attempt >= ended.attempt or time.monotonic() - self.ended_at >= _LAST_OUTPUT_SECONDS


class Following(Part):
    """Subscribes to the events of every followed run, only to wake followers; the messages are not kept."""

    def __init__(self, shared: Resources, *, timeline: Timeline, watching: Watching) -> None:
        super().__init__(shared)
        self._timeline = timeline
        self._watching = watching
        self._followers: dict[str, set[_Follower]] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._lock = asyncio.Lock()

    @property
    def follower_count(self) -> int:
        return sum(map(len, list(self._followers.values())))

    async def open(
        self, run_id: str, *, tenant_id: str, wanted: LogFilter, after: EventId | None
    ) -> AsyncGenerator[Output | End | None]:
        """The run's output after a position, as it comes; RunNotFound and NatsUnavailable come before the first.

        None is a heartbeat. The last item is the end of the run, once all of its output was read.
        """
        states = await self._watching.open(run_id, tenant_id=tenant_id, seconds=math.inf)
        reconnects = self._link.reconnects
        store = await self._timeline.identify()
        position = after.place if after is not None and after.store == store else 0
        reader = self._timeline.reader(run_id, tenant_id=tenant_id, position=position)
        return self._follow(run_id, reader, store, reconnects, states, wanted)

    async def _follow(
        self,
        run_id: str,
        reader: TimelineReader,
        store: str,
        reconnects: int,
        states: AsyncIterator[State | None],
        wanted: LogFilter,
    ) -> AsyncGenerator[Output | End | None]:
        follower = _Follower()
        watch = self._spawn(self._note_end(states, follower))
        self._followers.setdefault(run_id, set()).add(follower)
        self._spawn(self._listen_or_not(run_id))
        pause = _SHORTEST_PAUSE_SECONDS
        said_at = time.monotonic()
        try:
            while not follower.is_lost:
                follower.bell.clear()
                # Checked before reading, so that the read includes all output of an ended run.
                ended = follower.ended
                try:
                    if reconnects != self._link.reconnects:
                        reconnects, before, store = self._link.reconnects, store, await self._timeline.identify()
                        if store != before:
                            reader = reader.from_the_beginning()
                    read = await reader.read()
                except NatsUnavailable:
                    read, ended, pause = [], None, _OUTAGE_PAUSE_SECONDS
                if chosen := wanted.chosen(read):
                    yield Output(store, chosen)
                    said_at = time.monotonic()
                elif time.monotonic() - said_at >= _HEARTBEAT_SECONDS:
                    yield None
                    said_at = time.monotonic()
                if read:
                    pause = _SHORTEST_PAUSE_SECONDS
                    continue
                if ended is not None and follower.has_all_output(reader, ended):
                    yield End(ended.status, ended.attempt, ended.error)
                    return
                rang = await is_set_within(follower.bell, min(pause, said_at + _HEARTBEAT_SECONDS - time.monotonic()))
                pause = _SHORTEST_PAUSE_SECONDS if rang else min(pause * 2, _LONGEST_PAUSE_SECONDS)
        finally:
            watch.cancel()
            self._leave(run_id, follower)

    async def _note_end(self, states: AsyncIterator[State | None], follower: _Follower) -> None:
        try:
            async for state in states:
                if state is not None and state.snapshot.is_terminal:
                    follower.ended, follower.ended_at = state.snapshot, time.monotonic()
        except FleetError as error:
            logger.warning("a run can no longer be watched; its followers have to reconnect: %s", error)
            follower.is_lost = True
        follower.bell.set()

    def _leave(self, run_id: str, follower: _Follower) -> None:
        followers = self._followers[run_id]
        followers.discard(follower)
        if not followers:
            del self._followers[run_id]
        # In a separate task, because the leaving follower's task may be being cancelled.
        self._spawn(self._listen_or_not(run_id))

    async def _listen_or_not(self, run_id: str) -> None:
        """Subscribe to a run while it has followers. Without the subscription they see new output later."""

        async def ring(_: Msg) -> None:
            for follower in self._followers.get(run_id, ()):
                follower.bell.set()

        async with self._lock:
            is_followed, is_heard = run_id in self._followers, run_id in self._subscriptions
            try:
                if is_followed and not is_heard:
                    subject = self._settings.events_subject("*", run_id)
                    self._subscriptions[run_id] = await self._link.client.subscribe(subject, cb=ring)
                elif is_heard and not is_followed:
                    await self._subscriptions.pop(run_id).unsubscribe()
            except nats.errors.Error:
                logger.debug("the connection to NATS is closed", exc_info=True)

"""Watches runs: one consumer per process follows the KV bucket and passes each watcher its run's latest state."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import partial

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.names import kv_key, kv_stream, kv_subject
from fleet_contracts.snapshot import RunSnapshot
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.messages import stream_identity
from fleet_kit.nats.pull import stream_sequence_of
from fleet_kit.waiting import is_set_within

from ..loop import Loop
from ..resources import Resources
from .event_ids import EventId
from .views import RunViews

logger = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class State:
    snapshot: RunSnapshot
    # The store and the KV revision in it; 0: the state comes from the ledger, and the store has none.
    id: EventId


@dataclass(frozen=True, slots=True)
class _News:
    store: str
    msg: Msg


class Watcher:
    """Keeps only the latest change of a run: a slow client skips states, and no backlog builds up."""

    def __init__(self) -> None:
        self._news: _News | None = None
        self._changed = asyncio.Event()
        # A change may have been missed, so the state must be read.
        self.must_look = True

    def notify(self, news: _News) -> None:
        self._news = news
        self._changed.set()

    def warn(self) -> None:
        self._news = None  # older than the state that will be read
        self.must_look = True
        self._changed.set()

    async def wait(self, seconds: float) -> _News | None:
        """The latest change not taken yet; None if there is none within `seconds`."""
        if not await is_set_within(self._changed, max(seconds, 0.0)):
            return None
        self._changed.clear()
        news, self._news = self._news, None
        return news


class Watching(Loop):
    """Follows the bucket while there are watchers.

    Its rounds look for changes without a message: an end that was missed, or another store.
    """

    interruption = "whether watched runs have ended is looked up later"
    pause_seconds = 5.0

    def __init__(self, shared: Resources, *, views: RunViews) -> None:
        super().__init__(shared)
        self._bucket = shared.runs.bucket.name
        self._views = views
        self._watchers: dict[str, set[Watcher]] = {}
        self._subscription: JetStreamContext.PushSubscription | None = None
        # The identity of the store that is followed.
        self._store = ""
        self._lock = asyncio.Lock()

    @property
    def watcher_count(self) -> int:
        return sum(map(len, list(self._watchers.values())))

    async def resume(self) -> None:
        """After a reconnect, follow again and have every watcher read the state of its run. A hook of the link."""
        async with self._lock:
            await self._unfollow()
            if self._watchers:
                await self._follow()
        self._warn(self._watchers)

    async def round(self) -> float:
        if self._watchers:
            if await stream_identity(self._link, kv_stream(self._bucket)) != self._store:
                await self.resume()
            self._warn(await self._views.ended_among(list(self._watchers)))
        return self.pause_seconds

    async def stop(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._lock:
            await self._unfollow()

    async def open(
        self, run_id: str, *, tenant_id: str, after: EventId | None = None, since: float = 0.0, seconds: float
    ) -> AsyncIterator[State | None]:
        """The run's states from now on; RunNotFound and NatsUnavailable come before the first one.

        It begins with the present state unless its id is `after`, and yields only states newer than `since`. None is
        a heartbeat. It ends with the terminal state, which is always yielded, or when the time is up.
        """
        await self._views.find(run_id, tenant_id=tenant_id)
        accepted = await self._views.accepted(run_id, tenant_id=tenant_id)
        return self._states(run_id, accepted, after, since, time.monotonic() + seconds)

    async def _states(
        self, run_id: str, accepted: RunSnapshot, last: EventId | None, since: float, deadline: float
    ) -> AsyncIterator[State | None]:
        watcher = Watcher()
        self._watchers.setdefault(run_id, set()).add(watcher)
        try:
            while True:
                state = await self._next(run_id, accepted, watcher, last, deadline)
                if state is None:
                    yield None
                elif state.id != last or state.snapshot.is_terminal:
                    last = state.id
                    if state.snapshot.is_terminal or state.snapshot.updated_at > since:
                        yield state
                if time.monotonic() >= deadline or (state is not None and state.snapshot.is_terminal):
                    return
        finally:
            self._leave(run_id, watcher)

    async def _next(
        self, run_id: str, accepted: RunSnapshot, watcher: Watcher, last: EventId | None, deadline: float
    ) -> State | None:
        """The next state: read if a change may have been missed, else from the next message."""
        try:
            await self._ensure_following()
            if watcher.must_look:
                watcher.must_look = False
                store = self._store
                stored = await self._views.find_for_watcher(run_id, accepted)
                return State(stored.value, EventId(store, stored.revision))
        except NatsUnavailable:
            watcher.must_look = True  # NATS is unavailable; `resume` wakes the watcher when it is back
        news = await watcher.wait(min(_HEARTBEAT_SECONDS, deadline - time.monotonic()))
        if news is None or not news.msg.data:
            return None
        event_id = EventId(news.store, stream_sequence_of(news.msg))
        if last is not None and event_id.is_older_than(last):
            return None
        try:
            snapshot = RunSnapshot.decode_of(run_id, news.msg.data)
            return State(snapshot.with_facts_of(accepted), event_id)
        except MalformedMessage:
            logger.warning("a snapshot cannot be read and is not shown", extra={"run_id": run_id})
            return None

    async def _ensure_following(self) -> None:
        if self._subscription is None:
            async with self._lock:
                if self._subscription is None:
                    self._link.require()
                    await self._follow()

    async def _follow(self) -> None:
        store = await stream_identity(self._link, kv_stream(self._bucket))
        try:
            self._subscription = await self._link.jetstream.subscribe(
                kv_subject(self._bucket, ">"),
                stream=kv_stream(self._bucket),
                ordered_consumer=True,
                deliver_policy=api.DeliverPolicy.NEW,
                cb=partial(self._on_change, store),
            )
        except nats.errors.Error as error:
            raise self._link.unavailable(error) from error
        self._store = store

    async def _unfollow(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await subscription.unsubscribe()
            except nats.errors.Error:
                logger.debug("the consumer of the watchers was already gone", exc_info=True)

    async def _on_change(self, store: str, msg: Msg) -> None:
        for watcher in self._watchers.get(kv_key(self._bucket, msg.subject), ()):
            watcher.notify(_News(store, msg))

    def _warn(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            for watcher in self._watchers.get(run_id, ()):
                watcher.warn()

    def _leave(self, run_id: str, watcher: Watcher) -> None:
        watchers = self._watchers[run_id]
        watchers.discard(watcher)
        if not watchers:
            del self._watchers[run_id]
        if not self._watchers:
            # In a separate task, because the leaving watcher's task may be being cancelled.
            self._spawn(self._unfollow_if_idle())

    async def _unfollow_if_idle(self) -> None:
        async with self._lock:
            if not self._watchers:
                await self._unfollow()

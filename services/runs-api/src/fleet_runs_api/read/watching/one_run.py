"""Watches one run: its states as they come, from the first to the end."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.snapshot import RunSnapshot
from fleet_kit.errors import NatsUnavailable
from fleet_kit.waiting import is_set_within

from ..event_ids import EventId
from ..views import RunViews
from .hub import News, WatchHub

logger = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class State:
    snapshot: RunSnapshot
    # The store and the KV revision in it; 0: the state comes from the ledger, and the store has none.
    id: EventId


class _Watcher:
    """Keeps only the latest change of a run: a slow client skips states, and no backlog builds up."""

    def __init__(self) -> None:
        self._news: News | None = None
        self._changed = asyncio.Event()
        # A change may have been missed, so the state must be read.
        self.must_look = True

    def notify(self, _: str, news: News) -> None:
        self._news = news
        self._changed.set()

    def warn(self, _: str) -> None:
        self._news = None  # older than the state that will be read
        self.must_look = True
        self._changed.set()

    async def wait(self, seconds: float) -> News | None:
        """The latest change not taken yet; None if there is none within `seconds`."""
        if not await is_set_within(self._changed, max(seconds, 0.0)):
            return None
        self._changed.clear()
        news, self._news = self._news, None
        return news


class Watching:
    def __init__(self, hub: WatchHub, *, views: RunViews) -> None:
        self._hub = hub
        self._views = views

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
        watcher = _Watcher()
        self._hub.join([run_id], watcher)
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
            self._hub.leave([run_id], watcher)

    async def _next(
        self, run_id: str, accepted: RunSnapshot, watcher: _Watcher, last: EventId | None, deadline: float
    ) -> State | None:
        """The next state: read if a change may have been missed, else from the next message."""
        try:
            await self._hub.ensure_following()
            if watcher.must_look:
                watcher.must_look = False
                store = self._hub.place.store
                stored = await self._views.find_for_watcher(run_id, accepted)
                return State(stored.value, EventId(store, stored.revision))
        except NatsUnavailable:
            watcher.must_look = True  # NATS is unavailable; `resume` wakes the watcher when it is back
        news = await watcher.wait(min(_HEARTBEAT_SECONDS, deadline - time.monotonic()))
        if news is None or not news.data:
            return None
        if last is not None and news.id.is_older_than(last):
            return None
        try:
            snapshot = RunSnapshot.decode_of(run_id, news.data)
            return State(snapshot.with_facts_of(accepted), news.id)
        except MalformedMessage:
            logger.warning("a snapshot cannot be read and is not shown", extra={"run_id": run_id})
            return None

"""Watching runs: one consumer per process follows the bucket and tells every watcher the newest state of its run."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.names import kv_key, kv_stream, kv_subject
from fleet_contracts.snapshot import RunSnapshot
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats import NatsLink
from fleet_kit.pull import stream_sequence_of

from .views import RunViews

logger = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class State:
    snapshot: RunSnapshot
    revision: int


class Watcher:
    """Holds the newest news only: a client that reads slowly skips states, and nothing piles up."""

    def __init__(self) -> None:
        self._news: Msg | None = None
        self._changed = asyncio.Event()
        # Something may have happened that nobody told: it must be looked up.
        self.must_look = True

    def tell(self, msg: Msg) -> None:
        self._news = msg
        self._changed.set()

    def warn(self) -> None:
        self.must_look = True
        self._changed.set()

    async def wait(self, seconds: float) -> Msg | None:
        """The newest news not taken yet; None if there are none by then."""
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._changed.wait()
        except TimeoutError:
            return None
        self._changed.clear()
        news, self._news = self._news, None
        return news


class Watching:
    """Follows the bucket while anybody watches."""

    def __init__(self, *, link: NatsLink, bucket: str, views: RunViews) -> None:
        self._link = link
        self._bucket = bucket
        self._views = views
        self._watchers: dict[str, set[Watcher]] = {}
        self._subscription: JetStreamContext.PushSubscription | None = None
        self._lock = asyncio.Lock()
        self._tidying: set[asyncio.Task[None]] = set()

    @property
    def watcher_count(self) -> int:
        return sum(map(len, list(self._watchers.values())))

    async def resume(self) -> None:
        """After a reconnect: follow anew, and let every watcher look up what it has missed. A hook of the link."""
        async with self._lock:
            await self._unfollow()
            if self._watchers:
                await self._follow()
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.warn()

    async def stop(self) -> None:
        await asyncio.gather(*self._tidying, return_exceptions=True)
        async with self._lock:
            await self._unfollow()

    async def open(
        self, run_id: str, *, tenant_id: str, after_revision: int, since: float, seconds: float
    ) -> AsyncIterator[State | None]:
        """The run's states from now on; RunNotFound and NatsUnavailable come before the first one.

        Every state is newer than `after_revision` and `since`; None is a sign of life. It ends with the terminal
        state, or when the time is up.
        """
        await self._views.find(run_id, tenant_id=tenant_id)
        return self._states(run_id, tenant_id, after_revision, since, time.monotonic() + seconds)

    async def _states(
        self, run_id: str, tenant_id: str, after_revision: int, since: float, deadline: float
    ) -> AsyncIterator[State | None]:
        watcher = Watcher()
        self._watchers.setdefault(run_id, set()).add(watcher)
        try:
            while True:
                state = await self._next(run_id, tenant_id, watcher, deadline)
                if state is None:
                    yield None
                elif state.revision > after_revision:
                    after_revision = state.revision
                    if state.snapshot.updated_at > since:
                        yield state
                if time.monotonic() >= deadline or (state is not None and state.snapshot.is_terminal):
                    return
        finally:
            self._leave(run_id, watcher)

    async def _next(self, run_id: str, tenant_id: str, watcher: Watcher, deadline: float) -> State | None:
        """The next state: looked up if something may have been missed, else as it is told."""
        try:
            await self._ensure_following()
            if watcher.must_look:
                watcher.must_look = False
                # Surely: what is newer than this look is told, and nothing between the two may be missed.
                snapshot, revision = await self._views.find_with_revision(run_id, tenant_id=tenant_id, surely=True)
                return State(snapshot, revision)
        except NatsUnavailable:
            watcher.must_look = True  # it is away: the watcher is warned when it is back
        msg = await watcher.wait(min(_HEARTBEAT_SECONDS, deadline - time.monotonic()))
        if msg is None or not msg.data:
            return None
        try:
            return State(RunSnapshot.decode(msg.data), stream_sequence_of(msg))
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
        try:
            self._subscription = await self._link.jetstream.subscribe(
                kv_subject(self._bucket, ">"),
                stream=kv_stream(self._bucket),
                ordered_consumer=True,
                deliver_policy=api.DeliverPolicy.NEW,
                cb=self._on_change,
            )
        except (nats.errors.Error, nats.js.errors.Error) as error:
            raise self._link.unavailable(error) from error

    async def _unfollow(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await subscription.unsubscribe()
            except (nats.errors.Error, nats.js.errors.Error):
                logger.debug("the consumer of the watchers was already gone", exc_info=True)

    async def _on_change(self, msg: Msg) -> None:
        for watcher in self._watchers.get(kv_key(self._bucket, msg.subject), ()):
            watcher.tell(msg)

    def _leave(self, run_id: str, watcher: Watcher) -> None:
        watchers = self._watchers[run_id]
        watchers.discard(watcher)
        if not watchers:
            del self._watchers[run_id]
        if not self._watchers:
            # In a task of its own: whoever leaves may be in the middle of being cancelled.
            task = asyncio.create_task(self._unfollow_if_idle())
            self._tidying.add(task)
            task.add_done_callback(self._tidying.discard)

    async def _unfollow_if_idle(self) -> None:
        async with self._lock:
            if not self._watchers:
                await self._unfollow()

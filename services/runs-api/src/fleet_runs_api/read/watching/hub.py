"""Follows the bucket of runs with one consumer per process, and passes every change to the watchers of its run."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api

from fleet_contracts.names import kv_key, kv_stream, kv_subject
from fleet_kit.nats.messages import identity_of
from fleet_kit.nats.pull import stream_sequence_of

from ...loop import Loop
from ...resources import Resources
from ..event_ids import EventId
from ..views import RunViews

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class News:
    """A change of a run; its id is the store and the KV revision."""

    id: EventId
    # The snapshot; empty: the key was deleted.
    data: bytes


class Watcher(Protocol):
    """Gets the changes of the runs that it has joined the hub for. It must not wait."""

    def notify(self, run_id: str, news: News) -> None:
        """The run has changed."""

    def warn(self, run_id: str) -> None:
        """A change of the run may have been missed, so its state must be read."""


class WatchHub(Loop):
    """Follows the bucket while there are watchers, and a few seconds longer: the next one may come soon.

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
        # The identity of the store that is followed, and the revision up to which all changes were passed on.
        self.place = EventId("", 0)
        self._lock = asyncio.Lock()

    @property
    def watcher_count(self) -> int:
        return len(set[Watcher]().union(*list(self._watchers.values())))

    def join(self, run_ids: Iterable[str], watcher: Watcher) -> None:
        for run_id in run_ids:
            self._watchers.setdefault(run_id, set()).add(watcher)

    def leave(self, run_ids: Iterable[str], watcher: Watcher) -> None:
        for run_id in run_ids:
            watchers = self._watchers[run_id]
            watchers.discard(watcher)
            if not watchers:
                del self._watchers[run_id]

    async def ensure_following(self) -> None:
        """Follow the bucket if it is not followed yet; NatsUnavailable if that cannot be done."""
        if self._subscription is None:
            async with self._lock:
                if self._subscription is None:
                    self._link.require()
                    await self._follow()

    async def resume(self) -> None:
        """After a reconnect, follow again and have every watcher read the state of its run. A hook of the link."""
        async with self._lock:
            await self._unfollow()
            if self._watchers:
                await self._follow()
        self._warn(self._watchers)

    async def round(self) -> float:
        if not self._watchers:
            await self._unfollow_if_idle()
        else:
            if (await self._latest()).store != self.place.store:
                await self.resume()
            self._warn(await self._views.ended_among(list(self._watchers)))
        return self.pause_seconds

    async def stop(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._lock:
            await self._unfollow()

    async def _latest(self) -> EventId:
        info = await self._link.stream_info(kv_stream(self._bucket))
        return EventId(identity_of(info), info.state.last_seq)

    async def _follow(self) -> None:
        # Asked before the consumer is made: a change in between is in every state that is read from now on.
        place = await self._latest()
        try:
            self._subscription = await self._link.jetstream.subscribe(
                kv_subject(self._bucket, ">"),
                stream=kv_stream(self._bucket),
                ordered_consumer=True,
                deliver_policy=api.DeliverPolicy.NEW,
                cb=partial(self._on_change, place.store),
            )
        except nats.errors.Error as error:
            raise self._link.unavailable(error) from error
        self.place = place

    async def _unfollow(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await subscription.unsubscribe()
            except nats.errors.Error:
                logger.debug("the consumer of the watchers was already gone", exc_info=True)

    async def _on_change(self, store: str, msg: Msg) -> None:
        news = News(EventId(store, stream_sequence_of(msg)), msg.data)
        if store == self.place.store:
            self.place = news.id
        run_id = kv_key(self._bucket, msg.subject)
        for watcher in self._watchers.get(run_id, ()):
            watcher.notify(run_id, news)

    def _warn(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            for watcher in self._watchers.get(run_id, ()):
                watcher.warn(run_id)

    async def _unfollow_if_idle(self) -> None:
        async with self._lock:
            if not self._watchers:
                await self._unfollow()

"""Watches many runs at a time: the states that they have, then every change, and each end once."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.snapshot import RunSnapshot
from fleet_kit.errors import NatsUnavailable

from ...errors import LedgerUnavailable
from ...ledger.rows import RunState
from ...resources import Part, Resources
from ..event_ids import EventId
from ..lists.arrivals import Arrivals
from ..lists.listing import Listing
from ..lists.reads import RunFilter
from ..results import shown, shown_with_result
from ..states import RunStates, Seen, state_after
from .hub import WatchHub
from .pending import PendingNews

logger = logging.getLogger(__name__)

# The newest runs with a label that a stream begins with, and how many it tells of in all.
FIRST_RUNS = 1_000
MOST_RUNS = 10_000
_KEEPALIVE_SECONDS = 10.0
# Shorter than the time between keepalives, which unchanged heartbeats of runs must not put off.
_LONGEST_WAIT_SECONDS = 2.5
_ARRIVALS_SECONDS = 1.0
_OUTAGE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Told:
    """The state of a run, as JSON; the id of a change, which a stream can be resumed after."""

    body: bytes
    id: EventId | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Runs that do not exist, or not any more."""

    run_ids: list[str]


@dataclass(frozen=True, slots=True)
class Ready:
    """The states of all runs were told; what comes now are changes."""

    runs: int
    ended: int
    id: EventId


@dataclass(frozen=True, slots=True)
class End:
    """All runs have ended."""

    runs: int


@dataclass(frozen=True, slots=True)
class Full:
    """The stream has told of as many runs as one may."""

    runs: int


Item = Told | Unknown | Ready | End | Full


@dataclass(frozen=True, slots=True)
class WatchQuery:
    """What a caller wants to be told. A run is chosen by its id or by one of the labels."""

    tenant_id: str
    run_ids: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    with_results: bool = False
    after: EventId | None = None
    seconds: float = 600.0


class WatchingMany(Part):
    def __init__(self, shared: Resources, *, hub: WatchHub, states: RunStates, listing: Listing) -> None:
        super().__init__(shared)
        self._shared = shared
        self._hub = hub
        self._states = states
        self._listing = listing

    async def open(self, query: WatchQuery) -> AsyncGenerator[Item | None]:
        """The states of the runs from now on; NatsUnavailable and LedgerUnavailable come before the first one.

        None is a keepalive. An end is always told, also if it was told before an interruption.
        """
        self._link.require()
        deadline = time.monotonic() + query.seconds
        if not query.labels:
            known = await self._states.known(query.run_ids, tenant_id=query.tenant_id)
            stream = _Stream(self._hub, self._states, query, None, deadline)
            stream.add([run_id for run_id in query.run_ids if run_id in known])
            stream.unknown = [run_id for run_id in query.run_ids if run_id not in known]
            return stream.items()
        wanted = RunFilter(tenant_id=query.tenant_id, labels=query.labels)
        arrivals = Arrivals(self._shared, listing=self._listing, wanted=wanted)
        first = await arrivals.first(most=FIRST_RUNS)
        stream = _Stream(self._hub, self._states, query, arrivals, deadline)
        stream.add(first)
        return stream.items()


@dataclass(slots=True)
class _Known:
    """What was told of a run that goes on."""

    state: RunState | None = None
    id: EventId | None = None


@dataclass(slots=True, eq=False)
class _Stream:
    """One caller's stream. Its memory is bounded: a small state for each run, and the changes not taken yet."""

    hub: WatchHub
    states: RunStates
    query: WatchQuery
    # Of a stream by labels: what finds new runs.
    arrivals: Arrivals | None
    deadline: float
    unknown: list[str] = field(default_factory=list)
    _news: PendingNews = field(default_factory=PendingNews)
    # Runs that have not ended, by id.
    _open: dict[str, _Known] = field(default_factory=dict)
    _ids: set[str] = field(default_factory=set)
    # The changes up to here were told, once the first states are.
    _place: EventId | None = None
    _ready: bool = False
    _next_arrivals: float = 0.0

    def add(self, run_ids: Sequence[str]) -> None:
        new = [run_id for run_id in dict.fromkeys(run_ids) if run_id not in self._ids][: MOST_RUNS - len(self._ids)]
        self._ids.update(new)
        self._open.update((run_id, _Known()) for run_id in new)
        self._news.to_look.update(dict.fromkeys(new))

    async def items(self) -> AsyncGenerator[Item | None]:
        self.hub.join(self._open, self._news)
        try:
            told_at = time.monotonic()
            async with aclosing(self._items()) as items:
                async for item in items:
                    if item is not None:
                        told_at = time.monotonic()
                        yield item
                    elif time.monotonic() - told_at >= _KEEPALIVE_SECONDS:
                        told_at = time.monotonic()
                        yield None
        finally:
            self.hub.leave(self._open, self._news)

    async def _items(self) -> AsyncGenerator[Item | None]:
        """None after every wait."""
        if self.unknown:
            yield Unknown(self.unknown)
        while True:
            pause = _LONGEST_WAIT_SECONDS
            try:
                await self._look_for_arrivals()
                await self.hub.ensure_following()
                async with aclosing(self._look()) as looked:
                    async for item in looked:
                        yield item
                if not self._ready:
                    self._ready = True
                    assert self._place is not None
                    yield Ready(len(self._ids), len(self._ids) - len(self._open), self._place)
                if self.arrivals is None and not self._open:
                    yield End(len(self._ids))
                    return
                if len(self._ids) >= MOST_RUNS:
                    yield Full(len(self._ids))
                    return
            except (NatsUnavailable, LedgerUnavailable) as error:
                logger.debug("watched runs are looked at later: %s", error)
                pause = _OUTAGE_SECONDS
            now = time.monotonic()
            if now >= self.deadline:
                return
            if self.arrivals is not None:
                pause = min(pause, max(self._next_arrivals - now, 0.01))
            for run_id, news in await self._news.take(min(pause, self.deadline - now)):
                if (told := self._changed(run_id, news.id, news.data)) is not None:
                    yield told
            # Others are served between two pages, also if there is always more.
            await asyncio.sleep(0)
            yield None

    async def _look_for_arrivals(self) -> None:
        if self.arrivals is None or time.monotonic() < self._next_arrivals:
            return
        self._next_arrivals = time.monotonic() + _ARRIVALS_SECONDS
        found = await self.arrivals.next()
        before = len(self._open)
        self.add(found)
        if len(self._open) > before:
            self.hub.join(list(self._open)[before:], self._news)

    async def _look(self) -> AsyncGenerator[Told | Unknown]:
        """Read the states of runs of which a change may have been missed."""
        store = self.hub.place.store
        if self._place is None or self._place.store != store:
            self._place = self.hub.place
        wanted = self._news.take_to_look()
        if not wanted:
            return
        unseen = dict.fromkeys(wanted)
        looks = self.states.look(wanted, tenant_id=self.query.tenant_id, with_results=self.query.with_results)
        try:
            async with aclosing(looks):
                async for page in looks:
                    for seen in page:
                        del unseen[seen.run_id]
                        if seen.run_id in self._open and (item := self._seen(seen, store)) is not None:
                            yield item
        finally:
            self._news.to_look.update(unseen)

    def _seen(self, seen: Seen, store: str) -> Told | Unknown | None:
        known = self._open[seen.run_id]
        if seen.state is None:
            self._leave(seen.run_id)
            self._ids.discard(seen.run_id)
            return Unknown([seen.run_id])
        if seen.state.status.is_terminal:
            self._leave(seen.run_id)
            return Told(seen.with_result or shown(seen.state))
        place = EventId(store, seen.revision) if seen.revision else None
        after = self.query.after
        was_told = _is_same(known.state, seen.state) or (
            known.state is None and place is not None and (place == after or (after and place.is_older_than(after)))
        )
        known.state, known.id = seen.state, place
        return None if was_told else Told(shown(seen.state))

    def _changed(self, run_id: str, place: EventId, data: bytes) -> Told | None:
        """A change that the hub has passed on."""
        known = self._open.get(run_id)
        if known is None or known.state is None or place.store != self.hub.place.store:
            return None
        if known.id is not None and not known.id.is_older_than(place):
            return None
        try:
            snapshot = RunSnapshot.decode_of(run_id, data)
        except MalformedMessage:
            logger.warning("a snapshot cannot be read and is not shown", extra={"run_id": run_id})
            return None
        state = state_after(known.state, snapshot)
        is_told = _is_same(known.state, state)
        known.state, known.id = state, place
        # With a state left to read, a stream resumed after this one could miss it.
        event_id = None if self._news.to_look else place
        if state.status.is_terminal:
            self._leave(run_id)
            with_result = self.query.with_results
            return Told(shown_with_result(state, snapshot) if with_result else shown(state), event_id)
        return None if is_told else Told(shown(state), event_id)

    def _leave(self, run_id: str) -> None:
        del self._open[run_id]
        self.hub.leave([run_id], self._news)


def _is_same(known: RunState | None, state: RunState) -> bool:
    """Whether nothing has changed but the time of the latest heartbeat."""
    return known is not None and known._replace(updated_at=state.updated_at) == state

"""The flows as callers see them: those of live workers, and what could not be loaded."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from typing import Any

from fleet_contracts.catalogue import FlowOffer, WorkerCatalogue
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.logs.text import visible

from ..errors import FlowNotFound
from ..live.catalogues import Catalogues
from ..resources import Part, Resources
from .flow_schemas import (
    BrokenView,
    Difference,
    FlowDetail,
    FlowList,
    FlowOfferView,
    FlowSummary,
    ReloadFailure,
)

# How often it is looked whether the flows have changed while somebody asks or watches. A worker that falls silent
# writes nothing, so there is no event to wait for.
_LOOK_SECONDS = 0.25
_HEARTBEAT_SECONDS = 10.0
_MOST_NAMES = 500
_MOST_BROKEN_NAMED = 3
_LONGEST_REASON = 500

_Loaded = tuple[WorkerRecord, WorkerCatalogue]
# A worker's record and catalogue with one of the flows in it.
_Offer = tuple[WorkerRecord, WorkerCatalogue, FlowOffer]


@dataclass(slots=True)
class _Book:
    """All flows at one moment."""

    # Equal: nothing has changed.
    state: Any
    offers: Mapping[str, list[_Offer]] = field(default_factory=dict)
    listed: FlowList | None = None
    encoded: bytes = b""
    id: str = ""


class FlowViews(Part):
    def __init__(self, shared: Resources, *, catalogues: Catalogues) -> None:
        super().__init__(shared)
        self._catalogues = catalogues
        self._book = _Book(state=None)
        self._looked_at = 0.0
        self._looking = asyncio.Lock()

    async def listed(self) -> bytes:
        """The JSON of a `FlowList`."""
        self._link.require()
        return (await self._latest()).encoded

    async def find(self, name: str) -> FlowDetail:
        self._link.require()
        book = await self._latest()
        if (offers := book.offers.get(name)) is None:
            raise FlowNotFound(self._why_not(name, book), flow_name=name)
        *_, shown = _newest(offers)
        return FlowDetail(
            **_summary(name, offers).model_dump(),
            params_schema=shown.params_schema,
            graph=shown.graph,
            defaults=shown.defaults,
            offers=[
                FlowOfferView(
                    worker_id=record.worker_id,
                    tags=record.tags,
                    loaded_at=catalogue.loaded_at,
                    source=flow.source,
                    differs=_differences(flow, shown),
                )
                for record, catalogue, flow in offers
            ],
        )

    def follow(self, *, last_event_id: str, seconds: float) -> AsyncIterator[tuple[str, bytes] | None]:
        """Yield the list with its id, unless that is the last one seen, and again when it has changed; None: no news.

        NatsUnavailable is raised at once, not with the first item.
        """
        self._link.require()
        return self._follow(last_event_id, time.monotonic() + seconds)

    async def _follow(self, seen: str, deadline: float) -> AsyncIterator[tuple[str, bytes] | None]:
        quiet_since = time.monotonic()
        while (now := time.monotonic()) < deadline:
            book = await self._latest()
            if book.id != seen:
                seen, quiet_since = book.id, now
                yield book.id, book.encoded
            elif now - quiet_since > _HEARTBEAT_SECONDS:
                quiet_since = now
                yield None
            await asyncio.sleep(min(_LOOK_SECONDS, max(deadline - now, 0)))

    async def _latest(self) -> _Book:
        """The flows as they are now, or were a moment ago; one look and one encoding for all who ask."""
        async with self._looking:
            # While NATS is unavailable no heartbeat can arrive, which says nothing about the workers.
            is_away = self._link.down_because is not None and self._book.listed is not None
            if is_away or time.monotonic() - self._looked_at < _LOOK_SECONDS:
                return self._book
            version = self._catalogues.version
            live = sorted(self._catalogues.of_live_workers(now=time.time()), key=lambda one: one[0].worker_id)
            state = version, [(record.worker_id, record.instance_id, record.tags) for record, _ in live]
            if state != self._book.state:
                # In a thread: a thousand flows of a hundred workers take a good part of a second.
                self._book = await asyncio.to_thread(_book_of, state, live)
            self._looked_at = time.monotonic()
            return self._book

    def _why_not(self, name: str, book: _Book) -> str:
        listed = book.listed
        assert listed is not None
        reasons = ["no live worker offers this flow"]
        if self._catalogues.knows(name):
            reasons.append("those that offered it are gone")
        elif near := get_close_matches(name[:200], islice(book.offers, _MOST_NAMES), n=3):
            reasons.append("did you mean " + " or ".join(f'"{known}"' for known in near) + "?")
        if listed.broken:
            named = (f"{one.place} ({one.exc_type}: {one.message})" for one in listed.broken[:_MOST_BROKEN_NAMED])
            reasons.append(f"could not be loaded: {', '.join(named)}")
        # A terminal that shows it would execute control characters, which a worker may have sent.
        return "; ".join(visible(reason)[:_LONGEST_REASON] for reason in reasons)


def _book_of(state: Any, live: list[_Loaded]) -> _Book:
    offers: dict[str, list[_Offer]] = {}
    broken: dict[tuple[Any, ...], list[str]] = {}
    failures: dict[str, list[str]] = {}
    for record, worker in live:
        for flow in worker.catalogue.flows:
            offers.setdefault(flow.name, []).append((record, worker, flow))
        for source in worker.catalogue.broken:
            what = source.place, source.exc_type, source.message, source.line
            broken.setdefault(what, []).append(record.worker_id)
        if worker.reload_error is not None:
            failures.setdefault(worker.reload_error, []).append(record.worker_id)
    listed = FlowList(
        flows=[_summary(name, offers[name]) for name in sorted(offers)],
        broken=[
            BrokenView(place=place, exc_type=exc_type, message=message, line=line, workers=workers)
            for (place, exc_type, message, line), workers in sorted(broken.items(), key=lambda item: item[0][:3])
        ],
        reload_failures=[ReloadFailure(error=error, workers=workers) for error, workers in sorted(failures.items())],
        open_tags=_union(record.tags for record, worker in live if worker.catalogue.is_open),
        truncated=[record.worker_id for record, worker in live if worker.catalogue.is_truncated],
    )
    encoded = listed.model_dump_json().encode()
    # The flows in full: the list does not show all that a reader of one flow wants to know of.
    digest = hashlib.sha256(encoded)
    for _, worker in live:
        digest.update(worker.catalogue.encode())
    return _Book(state, offers, listed, encoded, digest.hexdigest()[:32])


def _summary(name: str, offers: list[_Offer]) -> FlowSummary:
    *_, shown = _newest(offers)
    differs = {difference for *_, flow in offers for difference in _differences(flow, shown)}
    return FlowSummary(
        name=name,
        description=shown.description,
        tags=_union(record.tags for record, _, _ in offers),
        workers=len(offers),
        versions=_union([flow.source.version] for *_, flow in offers if flow.source.version is not None),
        differs=sorted(differs),
    )


def _newest(offers: list[_Offer]) -> _Offer:
    return max(offers, key=lambda offer: offer[1].loaded_at)


def _differences(flow: FlowOffer, shown: FlowOffer) -> list[Difference]:
    if flow is shown:
        return []
    pairs: dict[Difference, tuple[Any, Any]] = {
        "description": (flow.description, shown.description),
        "params_schema": (flow.params_schema, shown.params_schema),
        "graph": (flow.graph, shown.graph),
        "defaults": (flow.defaults, shown.defaults),
        "version": (_version(flow), _version(shown)),
    }
    return [name for name, (one, other) in pairs.items() if one != other]


def _version(flow: FlowOffer) -> tuple[Any, ...]:
    return flow.source.kind, flow.source.package, flow.source.version


def _union(lists: Iterable[Iterable[str]]) -> list[str]:
    return sorted({item for each in lists for item in each})

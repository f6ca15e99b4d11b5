"""Sends changes of workers to watchers, all from one view of the workers in memory."""

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.nats.link import NatsLink
from fleet_kit.waiting import is_set_within

from .registry import Registry
from .schemas import essence_json, summary_json

logger = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 10.0
_JUDGE_SECONDS = 0.5
# Changes are batched: a watcher gets at most one batch in this time.
_GATHER_SECONDS = 0.1
# Removals remembered for watchers that reconnect; one that has missed more gets the whole list.
_REMOVALS_KEPT = 1000


@dataclass(slots=True)
class Shown:
    """A worker as it is shown to watchers."""

    record: WorkerRecord
    state: WorkerState
    # The number of the change that led to this state.
    number: int
    essence: bytes
    # With the latest heartbeats, encoded once for all watchers, when the first needs it.
    encoded: bytes | None = None

    def encode(self) -> bytes:
        if self.encoded is None:
            self.encoded = summary_json(self.record, self.state)
        return self.encoded


@dataclass(frozen=True, slots=True)
class Everything:
    """All workers, encoded; they replace the watcher's list."""

    number: int
    workers: list[bytes]


@dataclass(frozen=True, slots=True)
class Changed:
    """A worker that is new or has changed, encoded."""

    number: int
    worker: bytes


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker that was removed, or is hidden from this watcher."""

    number: int
    worker_id: str


News = Everything | Changed | Gone


class Watcher:
    """Holds the ids of changed workers, not the changes: a slow reader skips states, and no queue grows."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self.woken = asyncio.Event()

    def notify(self, *worker_ids: str) -> None:
        self.changed.update(worker_ids)
        self.woken.set()


class Watching:
    def __init__(self, link: NatsLink, registry: Registry) -> None:
        self._link = link
        self._registry = registry
        self._shown: dict[str, Shown] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()
        # Removals up to this number are forgotten.
        self._forgotten = 0
        self._number = 0
        # Part of each event id, because numbers of another process or an earlier start are not valid here.
        self._life = uuid.uuid4().hex[:12]
        self._watchers: set[Watcher] = set()
        registry.on_change = self._on_change

    @property
    def watcher_count(self) -> int:
        return len(self._watchers)

    def event_id(self, news: News) -> str:
        return f"{self._life}-{news.number}"

    async def judge(self) -> None:
        """Find workers whose heartbeat is overdue, in a loop: a missing heartbeat writes nothing to watch."""
        while True:
            await asyncio.sleep(_JUDGE_SECONDS)
            try:
                # While NATS is unavailable no heartbeat can arrive.
                if self._link.down_because is None:
                    self._update_all()
            except Exception:
                logger.exception("judging who is silent failed; the next round tries again")

    def follow(self, *, last_event_id: str, include_hidden: bool, seconds: float) -> AsyncIterator[News | None]:
        """Yield all workers, unless `last_event_id` is recent enough, then every change; None is a keep-alive.

        NatsUnavailable is raised at once, not with the first item.
        """
        self._link.require()
        return self._follow(last_event_id, include_hidden, time.monotonic() + seconds)

    async def _follow(self, last_event_id: str, include_hidden: bool, deadline: float) -> AsyncIterator[News | None]:
        watcher = Watcher()
        self._watchers.add(watcher)
        try:
            if (missed := self._missed_since(last_event_id)) is None:
                everything = [shown for shown in self._shown.values() if include_hidden or not shown.record.hidden]
                known = {shown.record.worker_id for shown in everything}
                yield Everything(self._number, [shown.encode() for shown in everything])
            else:
                known = {*self._shown, *missed}
                watcher.notify(*missed)
            while (left := deadline - time.monotonic()) > 0:
                if not await is_set_within(watcher.woken, min(_HEARTBEAT_SECONDS, left)):
                    if left > _HEARTBEAT_SECONDS:
                        yield None
                    continue
                for number, worker_id in self._changes_for(watcher):
                    shown = self._shown.get(worker_id)
                    if shown is not None and (include_hidden or not shown.record.hidden):
                        known.add(worker_id)
                        yield Changed(number, shown.encode())
                    elif worker_id in known:
                        known.discard(worker_id)
                        yield Gone(number, worker_id)
                await asyncio.sleep(_GATHER_SECONDS)
        finally:
            self._watchers.discard(watcher)

    def _update_all(self) -> None:
        for record in self._registry.records():
            shown = self._shown.get(record.worker_id)
            if shown is None or shown.state is not self._registry.state_of(record):
                self._on_change(record.worker_id, record)

    def _missed_since(self, last_event_id: str) -> set[str] | None:
        """The workers changed since that event; None if it is too old or of another process."""
        life, _, text = last_event_id.rpartition("-")
        if life != self._life or not text.isascii() or not text.isdigit() or len(text) > 18:
            return None
        number = int(text)
        if not self._forgotten <= number <= self._number:
            return None
        changed = {worker_id for worker_id, shown in self._shown.items() if shown.number > number}
        return changed | {worker_id for worker_id, gone_at in self._gone.items() if gone_at > number}

    def _changes_for(self, watcher: Watcher) -> list[tuple[int, str]]:
        """Pending changes in the order of their numbers: a watcher cut off in between resumes without a gap."""
        changed, watcher.changed = watcher.changed, set()
        watcher.woken.clear()
        return sorted((self._number_of(worker_id), worker_id) for worker_id in changed)

    def _number_of(self, worker_id: str) -> int:
        shown = self._shown.get(worker_id)
        return self._gone.get(worker_id, self._forgotten) if shown is None else shown.number

    def _on_change(self, worker_id: str, record: WorkerRecord | None) -> None:
        if record is None:
            if self._shown.pop(worker_id, None) is not None:
                self._number += 1
                self._gone[worker_id] = self._number
                if len(self._gone) > _REMOVALS_KEPT:
                    self._forgotten = self._gone.popitem(last=False)[1]
                self._notify(worker_id)
            return
        state = self._registry.state_of(record)
        essence = essence_json(record, state)
        before = self._shown.get(worker_id)
        if before is not None and before.essence == essence:
            before.record, before.encoded = record, None
            return
        self._number += 1
        self._gone.pop(worker_id, None)
        self._shown[worker_id] = Shown(record, state, self._number, essence)
        self._notify(worker_id)

    def _notify(self, worker_id: str) -> None:
        for watcher in self._watchers:
            watcher.notify(worker_id)

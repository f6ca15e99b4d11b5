"""The registry of wheels: what is there, what may come in, what goes; every change leaves an event."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.wheel import (
    WHEEL_EVENT_HEADER,
    WHEEL_TAGS_HEADER,
    WheelAction,
    WheelActor,
    WheelEvent,
    WheelSource,
    join_tags,
    split_tags,
)
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.events import service_call
from fleet_kit.nats.link import WrongRevision
from fleet_kit.nats.object_writing import Draft, ObjectWriter
from fleet_kit.nats.objects import Listing, StoredObject

from .archive import check_archive
from .errors import RegistryBusy, WheelNotFound
from .history import History, new_event_id
from .names import WheelName, is_file_name, require_newer
from .upload import Upload

logger = logging.getLogger(__name__)

_READ_BYTES = 1024 * 1024
# How often a write is tried again because somebody else was faster.
_MOST_TRIES = 100
# Wheels that are sent to NATS at once; the others wait with their files on disk.
_STORED_AT_ONCE = 4


class Registry:
    def __init__(
        self, store: ObjectWriter, history: History, *, history_ttl_sec: float, most_unpacked_bytes: int
    ) -> None:
        self._store = store
        self._history = history
        self._history_ttl_sec = history_ttl_sec
        self._most_unpacked_bytes = most_unpacked_bytes
        self._storing = asyncio.Semaphore(_STORED_AT_ONCE)
        # One at a time: a large directory takes a moment and some memory.
        self._checker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wheel-check")
        # Events that stand beside an object and are known to be in the history.
        self._recorded: set[str] = set()

    async def wheels(self) -> list[StoredObject]:
        """Every wheel by its name; what others have put into the store under other names is not one."""
        objects = (await self._store.list()).objects
        return sorted((stored for stored in objects if is_file_name(stored.name)), key=lambda stored: stored.name)

    async def find(self, name: str) -> StoredObject:
        # Surely: another replica of this service may have stored it a moment ago.
        stored = await self._store.find(name, linearizable=True) if is_file_name(name) else None
        if stored is None:
            raise WheelNotFound(wheel_name=name[:255])
        return stored

    async def require_newer(self, wheel: WheelName) -> None:
        """Refuse a wheel that has no chance before its bytes are taken in."""
        require_newer(wheel, [stored.name for stored in (await self._store.list()).objects])

    async def register(self, upload: Upload, actor: WheelActor, source: WheelSource) -> StoredObject:
        """Check it, store it, and make it visible if it is still the newest of its package by then."""
        with service_call(logger, "wheels", "register", entity_id=f"wheel:{upload.wheel.file_name}"):
            await asyncio.get_running_loop().run_in_executor(self._checker, self._check, upload)
            async with self._storing:
                await self.require_newer(upload.wheel)
                async with self._store.draft(_pieces(upload.file)) as draft:
                    stored, event = await self._enter(draft, upload, actor, source)
        await self._record(event)
        return await self._as_stored(stored)

    async def remove(self, name: str, actor: WheelActor, source: WheelSource) -> None:
        with service_call(logger, "wheels", "remove", entity_id=f"wheel:{name}"):
            await self._remove(name, actor, source)

    async def _remove(self, name: str, actor: WheelActor, source: WheelSource) -> None:
        for _ in range(_MOST_TRIES):
            stored = await self.find(name)
            event = _event(WheelAction.DELETE, stored.name, actor, source).model_copy(
                update={"tags": tags_of(stored), "size_bytes": stored.size, "sha256_hex": stored.sha256_hex}
            )
            await self._settle(stored)
            if await self._store.delete(stored, headers=_tombstone(stored, event)):
                await self._record(event)
                return
        raise RegistryBusy()

    @property
    def is_unfinished(self) -> bool:
        """Something failed a moment ago and may have left traces."""
        return self._store.has_leftovers

    async def reconcile(self) -> None:
        """Write down what an outage kept out of the history, and take back what it left half done."""
        await self._store.clear_leftovers(self._withdraw)
        listing = await self._store.list()
        every = [*listing.objects, *listing.deleted]
        for stored in every:
            await self._settle(stored)
        self._recorded &= {event.event_id for stored in every if (event := _event_of(stored)) is not None}

    async def _enter(
        self, draft: Draft, upload: Upload, actor: WheelActor, source: WheelSource
    ) -> tuple[StoredObject, WheelEvent]:
        name = upload.wheel.file_name
        event = _event(WheelAction.UPLOAD, name, actor, source).model_copy(
            update={
                "tags": upload.tags,
                "size_bytes": draft.size,
                "sha256_hex": draft.sha256_hex,
                "replace": upload.replace,
            }
        )
        headers = {
            "content-type": "application/octet-stream",
            # Peers look for it here; the format's own digest says the same.
            "sha256": draft.sha256_hex,
            WHEEL_EVENT_HEADER: event.encode().decode(),
        }
        if upload.tags:
            headers[WHEEL_TAGS_HEADER] = join_tags(upload.tags)
        for tries in range(_MOST_TRIES):
            listing = await self._store.list()
            require_newer(upload.wheel, [stored.name for stored in listing.objects])
            await self._settle_earlier(listing, name)
            try:
                return await self._store.name(draft, name, headers=headers, after=listing.sequence), event
            except WrongRevision:
                logger.debug("the registry has changed meanwhile, looking again")
            # A replica of the stream that was asked may lag behind the one that decides.
            await asyncio.sleep(min(0.002 * tries, 0.05))
        raise RegistryBusy()

    async def _settle_earlier(self, listing: Listing, name: str) -> None:
        """What stands beside a name is about to be overwritten: its event must be in the history before."""
        for stored in listing.deleted:
            if stored.name == name:
                await self._settle(stored)

    async def _settle(self, stored: StoredObject) -> None:
        """See to it that the event which made an object what it is stands in the history."""
        event = _event_of(stored)
        if event is None or event.event_id in self._recorded:
            return
        # What the history has forgotten by now is not brought back.
        if time.time() - event.occurred_at < self._history_ttl_sec:
            await self._history.record(event)
        self._recorded.add(event.event_id)

    async def _record(self, event: WheelEvent) -> None:
        """After the fact: it stands beside the object, so `reconcile` writes it down if this fails."""
        try:
            await self._history.record(event)
        except NatsUnavailable:
            logger.warning("the history could not be written, it is written later", exc_info=True)
        else:
            self._recorded.add(event.event_id)

    async def _withdraw(self, stored: StoredObject) -> Mapping[str, str]:
        """An upload that was answered with 503 and arrived all the same: it came and went, says the history."""
        await self._settle(stored)
        upload = _event_of(stored)
        if upload is None:
            return {}
        event = upload.model_copy(
            update={
                "event_id": new_event_id(),
                "occurred_at": time.time(),
                "action": WheelAction.DELETE,
                "replace": None,
            }
        )
        logger.warning("taking back %s, whose upload was answered as failed", stored.name)
        return _tombstone(stored, event)

    async def _as_stored(self, stored: StoredObject) -> StoredObject:
        """The same as a list would show it, with JetStream's own time."""
        try:
            found = await self._store.find(stored.name)
        except NatsUnavailable:
            return stored
        return found if found is not None and found.nuid == stored.nuid else stored

    def _check(self, upload: Upload) -> None:
        check_archive(upload.file, upload.wheel, most_unpacked_bytes=self._most_unpacked_bytes)


def tags_of(stored: StoredObject) -> list[str]:
    return split_tags(stored.headers.get(WHEEL_TAGS_HEADER))


def _event(action: WheelAction, name: str, actor: WheelActor, source: WheelSource) -> WheelEvent:
    return WheelEvent(
        event_id=new_event_id(), occurred_at=time.time(), action=action, wheel_name=name, actor=actor, source=source
    )


def _event_of(stored: StoredObject) -> WheelEvent | None:
    """None if others have put it there."""
    text = stored.headers.get(WHEEL_EVENT_HEADER)
    if text is None:
        return None
    try:
        return WheelEvent.decode(text.encode())
    except MalformedMessage as error:
        logger.warning("the event beside %s is not readable: %s", stored.name, error)
        return None


def _tombstone(stored: StoredObject, event: WheelEvent) -> dict[str, str]:
    kept = {name: value for name, value in stored.headers.items() if name == WHEEL_TAGS_HEADER}
    return kept | {WHEEL_EVENT_HEADER: event.encode().decode()}


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    await asyncio.to_thread(file.seek, 0)
    while piece := await asyncio.to_thread(file.read, _READ_BYTES):
        yield piece

"""The registry of wheels: lists, registers and removes them; every change is recorded as an event."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
from fleet_kit.ids import new_id
from fleet_kit.logs.events import service_call
from fleet_kit.nats.link import WrongRevision
from fleet_kit.nats.stores.object_writing import Draft, ObjectWriter
from fleet_kit.nats.stores.objects import StoredObject

from .archive import check_archive
from .errors import RegistryBusy, WheelNotFound
from .history import History
from .names import WheelName, is_file_name, require_newer
from .upload import Upload

logger = logging.getLogger(__name__)

_READ_BYTES = 1024 * 1024
# Attempts of a compare-and-set that loses against concurrent writes.
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
        # One check at a time: the directory of a large archive takes time and memory.
        self._checker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wheel-check")
        # Ids of events from objects' headers that are known to be in the history.
        self._recorded: set[str] = set()

    async def wheels(self) -> list[StoredObject]:
        """All wheels, sorted by name; objects of other programs that are not named like a wheel are left out."""
        objects = (await self._store.list()).objects
        return sorted((stored for stored in objects if is_file_name(stored.name)), key=lambda stored: stored.name)

    async def find(self, name: str) -> StoredObject:
        # Linearizable, because another replica of this service may just have stored it.
        stored = await self._store.find(name, linearizable=True) if is_file_name(name) else None
        if stored is None:
            raise WheelNotFound(wheel_name=name[:255])
        return stored

    async def require_newer(self, wheel: WheelName) -> None:
        """Refuse a wheel that is not newer, before its bytes are received."""
        require_newer(wheel, [stored.name for stored in (await self._store.list()).objects])

    async def register(self, upload: Upload, actor: WheelActor, source: WheelSource) -> StoredObject:
        """Check and store a wheel; make it visible if it is still the newest of its package by then."""
        with service_call(logger, "wheels", "register", entity_id=f"wheel:{upload.wheel.file_name}"):
            check = partial(check_archive, upload.file, upload.wheel, most_unpacked_bytes=self._most_unpacked_bytes)
            await asyncio.get_running_loop().run_in_executor(self._checker, check)
            async with self._storing:
                await self.require_newer(upload.wheel)
                async with self._store.draft(_pieces(upload.file)) as draft:
                    stored, event = await self._enter(draft, upload, actor, source)
        await self._record(event)
        return await self._as_stored(stored)

    async def remove(self, name: str, actor: WheelActor, source: WheelSource) -> None:
        with service_call(logger, "wheels", "remove", entity_id=f"wheel:{name}"):
            for _ in range(_MOST_TRIES):
                stored = await self.find(name)
                event = WheelEvent(
                    event_id=new_id(),
                    occurred_at=time.time(),
                    action=WheelAction.DELETE,
                    wheel_name=stored.name,
                    tags=tags_of(stored),
                    size_bytes=stored.size,
                    sha256_hex=stored.sha256_hex,
                    actor=actor,
                    source=source,
                )
                await self._settle(stored)
                if await self._store.delete(stored, headers=_tombstone(stored, event)):
                    await self._record(event)
                    return
            raise RegistryBusy()

    async def reconcile(self) -> None:
        """Record events that the history misses after an outage, and withdraw uploads it left unfinished."""
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
        event = WheelEvent(
            event_id=new_id(),
            occurred_at=time.time(),
            action=WheelAction.UPLOAD,
            wheel_name=name,
            tags=upload.tags,
            size_bytes=draft.size,
            sha256_hex=draft.sha256_hex,
            replace=upload.replace,
            actor=actor,
            source=source,
        )
        headers = {
            "content-type": "application/octet-stream",
            # Other implementations read the digest here; the object store's own field has the same value.
            "sha256": draft.sha256_hex,
            WHEEL_EVENT_HEADER: event.encode().decode(),
        }
        if upload.tags:
            headers[WHEEL_TAGS_HEADER] = join_tags(upload.tags)
        for tries in range(_MOST_TRIES):
            listing = await self._store.list()
            require_newer(upload.wheel, [stored.name for stored in listing.objects])
            # The event of a deleted object is recorded before the upload of the same name overwrites it.
            for stored in listing.deleted:
                if stored.name == name:
                    await self._settle(stored)
            try:
                return await self._store.name(draft, name, headers=headers, after=listing.sequence), event
            except WrongRevision:
                logger.debug("the registry has changed meanwhile, looking again")
            # The replica that answered the list may lag behind the stream's leader.
            await asyncio.sleep(min(0.002 * tries, 0.05))
        raise RegistryBusy()

    async def _settle(self, stored: StoredObject) -> None:
        """Make sure that the event in an object's headers, its latest, is in the history."""
        event = _event_of(stored)
        if event is None or event.event_id in self._recorded:
            return
        # An event older than the TTL of the history is not added again.
        if time.time() - event.occurred_at < self._history_ttl_sec:
            await self._history.record(event)
        self._recorded.add(event.event_id)

    async def _record(self, event: WheelEvent) -> None:
        """Record an event after its write; if this fails, `reconcile` does it from the object's headers."""
        try:
            await self._history.record(event)
        except NatsUnavailable:
            logger.warning("the history could not be written, it is written later", exc_info=True)
        else:
            self._recorded.add(event.event_id)

    async def _withdraw(self, stored: StoredObject) -> Mapping[str, str]:
        """Headers that delete an upload which was answered with 503 but stored; the history gets both events."""
        await self._settle(stored)
        upload = _event_of(stored)
        if upload is None:
            return {}
        now = {"event_id": new_id(), "occurred_at": time.time()}
        event = upload.model_copy(update={**now, "action": WheelAction.DELETE, "replace": None})
        logger.warning("taking back %s, whose upload was answered as failed", stored.name)
        return _tombstone(stored, event)

    async def _as_stored(self, stored: StoredObject) -> StoredObject:
        """The object as a list would show it, with JetStream's timestamp."""
        try:
            found = await self._store.find(stored.name)
        except NatsUnavailable:
            return stored
        return found if found is not None and found.nuid == stored.nuid else stored


def tags_of(stored: StoredObject) -> list[str]:
    return split_tags(stored.headers.get(WHEEL_TAGS_HEADER))


def _event_of(stored: StoredObject) -> WheelEvent | None:
    """The event in an object's headers; None if it is unreadable or another program stored the object."""
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

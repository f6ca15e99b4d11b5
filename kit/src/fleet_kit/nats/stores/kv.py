"""A KV bucket with compare-and-set writes, and a mirror of a small bucket kept in memory."""

import asyncio
import logging
from collections.abc import Callable, Container
from dataclasses import dataclass

import nats.errors
import nats.js.errors
import orjson
from nats.js.kv import KeyValue

from fleet_contracts.names import NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, kv_key, kv_stream, kv_subject

from ...errors import NatsUnavailable
from ..link import Ack, NatsLink
from ..messages import last_message

logger = logging.getLogger(__name__)

_GONE = {"DEL", "PURGE"}
_LOAD_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Entry:
    value: bytes
    revision: int


class Bucket:
    """A KV bucket: keys are read with a direct get and written with an expected revision.

    In a cluster a direct get may be stale. A compare-and-set made from a stale read is refused; a decision that
    nothing else would correct needs a `linearizable` read, which the bucket's leader answers.
    """

    def __init__(self, link: NatsLink, name: str) -> None:
        self.name = name
        self._link = link

    async def update(self, key: str, value: bytes, *, revision: int) -> int:
        """Write a key whose latest revision, a delete marker's included, is this (0: none); else WrongRevision."""
        return (await (await self.update_nowait(key, value, revision=revision))).sequence

    async def update_nowait(self, key: str, value: bytes, *, revision: int) -> asyncio.Future[Ack]:
        headers = {NATS_EXPECTED_LAST_SUBJECT_SEQUENCE: str(revision)}
        return await self._link.publish_nowait(kv_subject(self.name, key), value, headers)

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Delete a key by a marker; WrongRevision if a revision is given and it is not the latest.

        A marker and no purge: rollup headers are forbidden (resources.py), and a late write must find a revision.
        """
        headers = {"KV-Operation": "DEL"}
        if revision is not None:
            headers[NATS_EXPECTED_LAST_SUBJECT_SEQUENCE] = str(revision)
        await self._link.publish(kv_subject(self.name, key), b"", headers)

    async def markers(self, *, besides: Container[str]) -> dict[str, int]:
        """The revisions of delete markers, by key; keys of `besides` are known to exist and are skipped."""
        try:
            info = await self._link.jetstream.stream_info(
                kv_stream(self.name), subjects_filter=kv_subject(self.name, ">")
            )
        except (nats.errors.Error, nats.js.errors.Error) as error:
            raise self._link.unavailable(error) from error
        found: dict[str, int] = {}
        for subject in info.state.subjects or ():
            if (key := kv_key(self.name, subject)) not in besides:
                entry, revision = await self.look_up(key)
                if entry is None and revision:
                    found[key] = revision
        return found

    async def erase(self, key: str, *, up_to: int) -> None:
        """Purge a key up to a revision, without a marker for watchers; newer entries stay."""
        wanted = orjson.dumps({"filter": kv_subject(self.name, key), "seq": up_to + 1})
        answer = orjson.loads((await self._link.request(f"$JS.API.STREAM.PURGE.{kv_stream(self.name)}", wanted)).data)
        if (error := answer.get("error")) is not None:
            raise NatsUnavailable(f"JetStream would not erase {key}: {error.get('description', 'no reason given')}")

    async def look_up(self, key: str, *, linearizable: bool = False) -> tuple[Entry | None, int]:
        """The entry, unless it is deleted, and the latest revision of the key, markers included (0: none)."""
        found = await last_message(
            self._link, kv_stream(self.name), kv_subject(self.name, key), linearizable=linearizable
        )
        if found is None:
            return None, 0
        # Markers that the server leaves for expired keys have a reason header instead of an operation.
        if found.headers.get("KV-Operation") in _GONE or "Nats-Marker-Reason" in found.headers:
            return None, found.sequence
        return Entry(found.data, found.sequence), found.sequence


class Mirror:
    """A small bucket in memory, kept by a watch that is renewed after every reconnect, so it cannot go silent."""

    def __init__(self, link: NatsLink, bucket: str, *, on_change: Callable[[str, bytes | None], None]) -> None:
        self._link = link
        self._bucket = bucket
        self._on_change = on_change
        self.values: dict[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None
        # Every change up to this revision has been seen.
        self.revision = 0

    async def restart(self) -> None:
        """Load the whole bucket, then watch it. Register this as a hook of the link."""
        await self.stop()
        bucket = await self._link.jetstream.key_value(self._bucket)
        watcher = await bucket.watchall(inactive_threshold=60.0)
        try:
            fresh, revision = await self._load(watcher)
        except BaseException:
            await self._end(watcher)
            raise
        gone = self.values.keys() - fresh.keys()
        self.values, self.revision = fresh, revision
        for key in gone:
            self._on_change(key, None)
        for key, value in fresh.items():
            self._on_change(key, value)
        self._task = asyncio.create_task(self._follow(watcher))

    @property
    def is_watching(self) -> bool:
        """Whether the whole bucket was loaded, and changes of it arrive."""
        return self._task is not None and not self._task.done()

    async def _load(self, watcher: KeyValue.KeyWatcher) -> tuple[dict[str, bytes], int]:
        """All values of the bucket, and the revision that they have together."""
        values: dict[str, bytes] = {}
        revision = 0
        while (entry := await watcher.updates(timeout=_LOAD_TIMEOUT_SECONDS)) is not None:  # type: ignore[no-untyped-call]
            self._apply(values, entry)
            revision = max(revision, entry.revision or 0)
        return values, revision

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _follow(self, watcher: KeyValue.KeyWatcher) -> None:
        try:
            async for entry in watcher:
                if entry is None:
                    continue
                value = self._apply(self.values, entry)
                self.revision = entry.revision or self.revision
                self._on_change(entry.key, value)
        except (nats.errors.Error, nats.js.errors.Error):
            logger.warning("the watch of %s broke off", self._bucket, exc_info=True)
        finally:
            await self._end(watcher)

    async def _end(self, watcher: KeyValue.KeyWatcher) -> None:
        try:
            await watcher.stop()  # type: ignore[no-untyped-call]
        except (nats.errors.Error, nats.js.errors.Error):
            logger.debug("the watch of %s was already gone", self._bucket)

    @staticmethod
    def _apply(values: dict[str, bytes], entry: KeyValue.Entry) -> bytes | None:
        if entry.operation in _GONE or entry.value is None:
            values.pop(entry.key, None)
            return None
        values[entry.key] = entry.value
        return entry.value

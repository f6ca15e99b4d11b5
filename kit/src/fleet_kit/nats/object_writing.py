"""Objects of a JetStream object store, written, named under compare-and-set, and deleted."""

import asyncio
import base64
import hashlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from nats.nuid import NUID

from fleet_contracts.names import (
    NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
    NATS_EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    NATS_ROLLUP,
    object_chunks_subject,
    object_meta_subject,
    object_metas_subject,
)

from ..errors import NatsUnavailable
from .link import Ack, NatsLink, WriteRefused, WrongRevision
from .messages import last_message, unix_seconds
from .objects import CHUNK_BYTES, DIGEST_PREFIX, ObjectMeta, ObjectStore, StoredObject

logger = logging.getLogger(__name__)

# Sent and not acknowledged yet: what a writer holds in memory.
_CHUNKS_IN_FLIGHT = 16
# What was on its way when a connection broke may arrive a little later.
_LEFTOVER_SECONDS = 60.0


@dataclass(slots=True)
class Draft:
    """Stored bytes without a name: nobody sees them until they get one."""

    nuid: str
    size: int
    chunks: int
    sha256: bytes
    chunk_bytes: int
    # When the last of them was stored, by the process's own clock.
    stored_at: float
    # True once the bytes belong to a name, or may do so: then they are not thrown away.
    named: bool = False

    @property
    def sha256_hex(self) -> str:
        return self.sha256.hex()


@dataclass(frozen=True, slots=True)
class _Leftover:
    # Under which name it may have become visible.
    name: str | None
    since: float = field(default_factory=time.monotonic)


class DraftTooOld(NatsUnavailable):
    """Storing took too long; try again."""


# What to do before an object is taken back; gives the headers that are left beside the name.
Withdrawal = Callable[[StoredObject], Awaitable[Mapping[str, str]]]


class ObjectWriter(ObjectStore):
    """Reads and writes one object store; needs to publish below its subjects and to purge its stream."""

    def __init__(self, link: NatsLink, bucket: str, *, draft_seconds: float = 1800.0) -> None:
        """`draft_seconds`: how soon after its last byte a draft gets its name; twice as old it is an orphan."""
        super().__init__(link, bucket)
        self._draft_seconds = draft_seconds
        self._nuids = NUID()
        self._leftovers: dict[str, _Leftover] = {}

    async def write(
        self, name: str, source: AsyncIterable[bytes], *, headers: Mapping[str, str] | None = None
    ) -> StoredObject:
        """Store an object, in place of the one that had the name."""
        async with self.draft(source) as draft:
            return await self.name(draft, name, headers=headers)

    @asynccontextmanager
    async def draft(self, source: AsyncIterable[bytes]) -> AsyncIterator[Draft]:
        """Store the bytes; they are thrown away at the end of the block unless `name` made an object of them."""
        nuid = self._nuids.next().decode()
        draft = None
        in_flight: deque[asyncio.Future[Ack]] = deque()
        outage = False
        try:
            draft = await self._send(nuid, source, in_flight)
            yield draft
        except NatsUnavailable:
            outage = True
            raise
        finally:
            if draft is None or not draft.named:
                # Who was cancelled may be cancelled again while waiting: the chunks go all the same.
                clearing = self._throw_away(nuid, in_flight=in_flight, once_more=outage)
                await asyncio.shield(asyncio.create_task(clearing))

    async def name(
        self, draft: Draft, name: str, *, headers: Mapping[str, str] | None = None, after: int | None = None
    ) -> StoredObject:
        """Make an object of a draft.

        With `after`, the sequence of a `Listing`, only if no object of the store has changed since: otherwise
        WrongRevision, and the draft may be tried again. If JetStream's answer does not come, nobody knows whether the
        object is there; `clear_leftovers` takes it back.
        """
        before = await self.find(name)
        if time.monotonic() - draft.stored_at > self._draft_seconds:
            raise DraftTooOld()
        meta = ObjectMeta(
            name=name,
            bucket=self.bucket,
            nuid=draft.nuid,
            size=draft.size,
            chunks=draft.chunks,
            digest=DIGEST_PREFIX + base64.urlsafe_b64encode(draft.sha256).decode(),
            mtime=datetime.now(UTC).isoformat(),
            headers=dict(headers or {}),
            options={"max_chunk_size": draft.chunk_bytes},
        )
        condition = {}
        if after is not None:
            condition = {
                NATS_EXPECTED_LAST_SUBJECT_SEQUENCE: str(after),
                NATS_EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: object_metas_subject(self.bucket),
            }
        draft.named = True
        try:
            ack = await self._publish_meta(meta, condition)
        except (WrongRevision, WriteRefused):
            draft.named = False
            raise
        except BaseException:
            self._leftovers[draft.nuid] = _Leftover(name)
            raise
        if before is not None and before.nuid != draft.nuid:
            await self._throw_away(before.nuid)
        return StoredObject(meta, ack.sequence, time.time())

    async def delete(self, stored: StoredObject, *, headers: Mapping[str, str] | None = None) -> bool:
        """Delete an object as it was found; False if it has changed since.

        The name stays known as deleted, with `headers` if they are given, and those of the object otherwise.
        """
        tombstone = stored.meta.model_copy(
            update={"deleted": True, "size": 0, "chunks": 0, "digest": "", "mtime": ""}
            | ({} if headers is None else {"headers": dict(headers)})
        )
        try:
            await self._publish_meta(tombstone, {NATS_EXPECTED_LAST_SUBJECT_SEQUENCE: str(stored.sequence)})
        except WrongRevision:
            return False
        await self._throw_away(stored.nuid)
        return True

    @property
    def has_leftovers(self) -> bool:
        return bool(self._leftovers)

    async def clear_leftovers(self, withdrawal: Withdrawal | None = None) -> None:
        """Take back what could not be taken back when a write failed. Call it now and then."""
        for nuid, leftover in list(self._leftovers.items()):
            stored = await self.find(leftover.name) if leftover.name else None
            if stored is not None and stored.nuid == nuid:
                headers = {} if withdrawal is None else await withdrawal(stored)
                if not await self.delete(stored, headers=headers):
                    continue
            await self.purge(nuid)
            if time.monotonic() - leftover.since > _LEFTOVER_SECONDS:
                self._leftovers.pop(nuid, None)

    async def sweep_orphans(self) -> int:
        """Purge the bytes that a writer left without a name, of this process or another; how many drafts that were.

        A draft is written without a pause and named soon after, or never: its last chunk tells whether somebody may
        still be at work on it. What `name` refuses as too old has been so for half the time that is waited here.
        """
        now, nuids = await self._stored_nuids()
        # Only now: a draft that got its name in between is among these.
        alive = {stored.nuid for stored in (await self.list()).objects}
        swept = 0
        for nuid in nuids - alive:
            last = await last_message(self._link, self.stream, object_chunks_subject(self.bucket, nuid))
            if last is not None and now - last.stored_at > 2 * self._draft_seconds:
                await self.purge(nuid)
                swept += 1
        return swept

    async def purge(self, nuid: str) -> None:
        """Throw chunks away. The caller knows that no object is made of them."""
        await self._ask("PURGE", {"filter": object_chunks_subject(self.bucket, nuid)})

    async def _stored_nuids(self) -> tuple[float, set[str]]:
        """JetStream's own time, and every draft and object that has chunks."""
        prefix = object_chunks_subject(self.bucket, "")
        nuids: set[str] = set()
        while True:
            info = await self._ask("INFO", {"subjects_filter": f"{prefix}>", "offset": len(nuids)})
            found = {subject.removeprefix(prefix) for subject in info["state"].get("subjects") or {}}
            nuids |= found
            if not found or len(nuids) >= info.get("total", 0):
                return unix_seconds(info["ts"]), nuids

    async def _ask(self, what: str, wanted: dict[str, object]) -> dict[str, Any]:
        """JetStream's answer to a question about the stream."""
        message = await self._link.request(f"$JS.API.STREAM.{what}.{self.stream}", orjson.dumps(wanted))
        answer: dict[str, Any] = orjson.loads(message.data)
        if (error := answer.get("error")) is not None:
            raise NatsUnavailable(f"JetStream refused {what} of {self.stream}: {error.get('description')}")
        return answer

    async def _send(self, nuid: str, source: AsyncIterable[bytes], in_flight: deque[asyncio.Future[Ack]]) -> Draft:
        subject = object_chunks_subject(self.bucket, nuid)
        chunk_bytes = min(CHUNK_BYTES, self._link.max_payload)
        digest = hashlib.sha256()
        size = chunks = 0
        async for chunk in _cut(source, chunk_bytes):
            if len(in_flight) == _CHUNKS_IN_FLIGHT:
                await self._wait_for_first(in_flight)
            digest.update(chunk)
            in_flight.append(await self._link.publish_nowait(subject, chunk))
            size += len(chunk)
            chunks += 1
        while in_flight:
            await self._wait_for_first(in_flight)
        return Draft(nuid, size, chunks, digest.digest(), chunk_bytes, time.monotonic())

    async def _wait_for_first(self, in_flight: deque[asyncio.Future[Ack]]) -> None:
        # Whoever waits here may be cancelled; the answer is waited for all the same, before the chunks are purged.
        await asyncio.shield(in_flight[0])
        in_flight.popleft()

    async def _publish_meta(self, meta: ObjectMeta, condition: Mapping[str, str]) -> Ack:
        subject = object_meta_subject(self.bucket, meta.name)
        # None is left out: other clients know some fields only as a text or a number.
        payload = meta.model_dump_json(exclude_none=True).encode()
        return await self._link.publish(subject, payload, {NATS_ROLLUP: "sub", **condition})

    async def _throw_away(
        self, nuid: str, *, in_flight: Iterable[asyncio.Future[Ack]] = (), once_more: bool = False
    ) -> None:
        """`once_more`: some chunks may be on their way still, so look again later."""
        self._leftovers[nuid] = _Leftover(None)
        # JetStream may purge before it stores what was sent earlier: first hear what became of that.
        answers = await asyncio.gather(*in_flight, return_exceptions=True)
        try:
            await self.purge(nuid)
        except NatsUnavailable:
            logger.warning("chunks of an object could not be purged, they go later", extra={"meta": {"nuid": nuid}})
            return
        if not once_more and all(isinstance(answer, Ack) for answer in answers):
            self._leftovers.pop(nuid, None)


async def _cut(source: AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    """The same bytes in pieces of one size; only the last may be smaller."""
    held = bytearray()
    async for piece in source:
        held += piece
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)

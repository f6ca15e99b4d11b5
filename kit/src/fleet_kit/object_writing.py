"""Objects of a JetStream object store, written, named under compare-and-set, and deleted."""

import asyncio
import base64
import hashlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

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

from .errors import NatsUnavailable
from .nats import Ack, NatsLink, WriteRefused, WrongRevision
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


class ObjectWriter(ObjectStore):
    """Reads and writes one object store; needs to publish below its subjects and to purge its stream."""

    def __init__(self, link: NatsLink, bucket: str) -> None:
        super().__init__(link, bucket)
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
        outage = False
        try:
            draft = await self._send(nuid, source)
            yield draft
        except NatsUnavailable:
            outage = True
            raise
        finally:
            if draft is None or not draft.named:
                # Who was cancelled may be cancelled again while waiting: the chunks go all the same.
                await asyncio.shield(asyncio.create_task(self._throw_away(nuid, once_more=outage)))

    async def name(
        self, draft: Draft, name: str, *, headers: Mapping[str, str] | None = None, after: int | None = None
    ) -> StoredObject:
        """Make an object of a draft.

        With `after`, the sequence of a `Listing`, only if no object of the store has changed since: otherwise
        WrongRevision, and the draft may be tried again. If JetStream's answer does not come, nobody knows whether the
        object is there; `clear_leftovers` takes it back.
        """
        before = await self.find(name)
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

    async def clear_leftovers(self) -> None:
        """Take back what could not be taken back when a write failed. Call it now and then."""
        for nuid, leftover in list(self._leftovers.items()):
            stored = await self.find(leftover.name) if leftover.name else None
            if stored is not None and stored.nuid == nuid:
                await self.delete(stored)
            await self.purge(nuid)
            if time.monotonic() - leftover.since > _LEFTOVER_SECONDS:
                self._leftovers.pop(nuid, None)

    async def purge(self, nuid: str) -> None:
        """Throw chunks away. The caller knows that no object is made of them."""
        wanted = orjson.dumps({"filter": object_chunks_subject(self.bucket, nuid)})
        answer = orjson.loads((await self._link.request(f"$JS.API.STREAM.PURGE.{self.stream}", wanted)).data)
        if (error := answer.get("error")) is not None:
            raise NatsUnavailable(f"JetStream could not purge {self.stream}: {error.get('description')}")

    async def _send(self, nuid: str, source: AsyncIterable[bytes]) -> Draft:
        subject = object_chunks_subject(self.bucket, nuid)
        chunk_bytes = min(CHUNK_BYTES, self._link.max_payload)
        digest = hashlib.sha256()
        size = chunks = 0
        unanswered: deque[asyncio.Future[Ack]] = deque()
        try:
            async for chunk in _cut(source, chunk_bytes):
                if len(unanswered) == _CHUNKS_IN_FLIGHT:
                    await self._link.wait_ack(unanswered.popleft())
                digest.update(chunk)
                unanswered.append(await self._link.publish_nowait(subject, chunk))
                size += len(chunk)
                chunks += 1
            while unanswered:
                await self._link.wait_ack(unanswered.popleft())
        finally:
            for future in unanswered:
                future.cancel()
        return Draft(nuid, size, chunks, digest.digest(), chunk_bytes)

    async def _publish_meta(self, meta: ObjectMeta, condition: Mapping[str, str]) -> Ack:
        subject = object_meta_subject(self.bucket, meta.name)
        # None is left out: other clients know some fields only as a text or a number.
        payload = meta.model_dump_json(exclude_none=True).encode()
        return await self._link.publish(subject, payload, {NATS_ROLLUP: "sub", **condition})

    async def _throw_away(self, nuid: str, *, once_more: bool = False) -> None:
        """`once_more`: some may be on their way still, so look again later."""
        self._leftovers[nuid] = _Leftover(None)
        try:
            await self.purge(nuid)
        except NatsUnavailable:
            logger.warning("chunks of an object could not be purged, they go later", extra={"meta": {"nuid": nuid}})
        else:
            if not once_more:
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

"""Writes objects to a JetStream object store, names them by compare-and-set, and deletes them.

The library names an object without a condition, and leaves the chunks of an interrupted write: see ADR 13.
"""

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

from ...errors import NatsUnavailable
from ..link import Ack, NatsLink, WriteRefused, WrongRevision
from ..messages import last_message, unix_seconds
from .objects import CHUNK_BYTES, DIGEST_PREFIX, ObjectStore, StoredObject

logger = logging.getLogger(__name__)

# Chunks without an ack yet; they bound the memory of a writer.
_CHUNKS_IN_FLIGHT = 16
# A chunk in flight when a connection broke may still be stored within this time.
_LEFTOVER_SECONDS = 60.0


@dataclass(slots=True)
class Draft:
    """Stored chunks without an object name: invisible until they get one."""

    nuid: str
    size: int
    chunks: int
    sha256: bytes
    chunk_bytes: int
    # When the last chunk was stored, by the process's own clock.
    stored_at: float
    # True once the chunks belong to an object, or may do so: then they are not purged.
    named: bool = False

    @property
    def sha256_hex(self) -> str:
        return self.sha256.hex()


@dataclass(frozen=True, slots=True)
class _Leftover:
    # The object name under which the chunks may have become visible.
    name: str | None
    since: float = field(default_factory=time.monotonic)


class DraftTooOld(NatsUnavailable):
    """Storing took too long; try again."""


# Called before an object is withdrawn; returns the headers of its tombstone.
Withdrawal = Callable[[StoredObject], Awaitable[Mapping[str, str]]]


class ObjectWriter(ObjectStore):
    """Reads and writes one object store; needs to publish below its subjects and to purge its stream."""

    def __init__(self, link: NatsLink, bucket: str, *, draft_seconds: float = 1800.0) -> None:
        """`draft_seconds`: a draft must be named this soon after its last byte; at twice this age it is an orphan."""
        super().__init__(link, bucket)
        self._draft_seconds = draft_seconds
        self._nuids = NUID()
        self._leftovers: dict[str, _Leftover] = {}

    @asynccontextmanager
    async def draft(self, source: AsyncIterable[bytes]) -> AsyncIterator[Draft]:
        """Store the bytes; they are purged at the end of the block unless `name` made an object of them."""
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
                # Shielded: a second cancellation while waiting must not stop the purge.
                clearing = self._purge_upload(nuid, in_flight=in_flight, once_more=outage)
                await asyncio.shield(asyncio.create_task(clearing))

    async def name(
        self, draft: Draft, name: str, *, headers: Mapping[str, str], after: int | None = None
    ) -> StoredObject:
        """Make an object of a draft; it replaces the one of the same name.

        With `after`, the sequence of a `Listing`, only if no object of the store has changed since: otherwise
        WrongRevision, and the draft may be tried again. Without JetStream's ack it is unknown whether the object
        exists; `clear_leftovers` withdraws it.
        """
        before = await self.find(name)
        if time.monotonic() - draft.stored_at > self._draft_seconds:
            raise DraftTooOld()
        stored = StoredObject(
            name=name,
            bucket=self.bucket,
            nuid=draft.nuid,
            size=draft.size,
            chunks=draft.chunks,
            digest=DIGEST_PREFIX + base64.urlsafe_b64encode(draft.sha256).decode(),
            mtime=datetime.now(UTC).isoformat(),
            headers=dict(headers),
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
            ack = await self._publish_meta(stored, condition)
        except (WrongRevision, WriteRefused):
            draft.named = False
            raise
        except BaseException:
            self._leftovers[draft.nuid] = _Leftover(name)
            raise
        if before is not None and before.nuid != draft.nuid:
            await self._purge_upload(before.nuid)
        return stored.model_copy(update={"sequence": ack.sequence, "modified": time.time()})

    async def delete(self, stored: StoredObject, *, headers: Mapping[str, str]) -> bool:
        """Delete an object as it was found; False if it has changed since. The name stays, with `headers`."""
        tombstone = stored.model_copy(
            update={"deleted": True, "size": 0, "chunks": 0, "digest": "", "mtime": "", "headers": dict(headers)}
        )
        try:
            await self._publish_meta(tombstone, {NATS_EXPECTED_LAST_SUBJECT_SEQUENCE: str(stored.sequence)})
        except WrongRevision:
            return False
        await self._purge_upload(stored.nuid)
        return True

    @property
    def has_leftovers(self) -> bool:
        return bool(self._leftovers)

    async def clear_leftovers(self, withdrawal: Withdrawal) -> None:
        """Withdraw what failed writes have left behind. Call it periodically."""
        for nuid, leftover in list(self._leftovers.items()):
            stored = await self.find(leftover.name) if leftover.name else None
            if stored is not None and stored.nuid == nuid:
                headers = await withdrawal(stored)
                if not await self.delete(stored, headers=headers):
                    continue
            await self.purge(nuid)
            if time.monotonic() - leftover.since > _LEFTOVER_SECONDS:
                self._leftovers.pop(nuid, None)

    async def sweep_orphans(self) -> int:
        """Purge drafts that a writer of this or another process has abandoned; returns their number.

        A draft is written without a pause and named soon after, or never: the age of its last chunk shows whether it
        may still be in use. The limit is twice that of `name`.
        """
        now, nuids = await self._stored_nuids()
        # Listed after the drafts, so that a draft named in between is among these.
        alive = {stored.nuid for stored in (await self.list()).objects}
        swept = 0
        for nuid in nuids - alive:
            last = await last_message(self._link, self.stream, object_chunks_subject(self.bucket, nuid))
            if last is not None and now - last.stored_at > 2 * self._draft_seconds:
                await self.purge(nuid)
                swept += 1
        return swept

    async def purge(self, nuid: str) -> None:
        """Purge chunks. The caller knows that no object is made of them."""
        await self._ask("PURGE", {"filter": object_chunks_subject(self.bucket, nuid)})

    async def _stored_nuids(self) -> tuple[float, set[str]]:
        """The time of JetStream's clock, and the nuid of every draft and object that has chunks."""
        prefix = object_chunks_subject(self.bucket, "")
        nuids: set[str] = set()
        while True:
            info = await self._ask("INFO", {"subjects_filter": f"{prefix}>", "offset": len(nuids)})
            found = {subject.removeprefix(prefix) for subject in info["state"].get("subjects") or {}}
            nuids |= found
            if not found or len(nuids) >= info.get("total", 0):
                return unix_seconds(info["ts"]), nuids

    async def _ask(self, what: str, wanted: dict[str, object]) -> dict[str, Any]:
        """Call a stream's JetStream API and return the answer."""
        message = await self._link.request(f"$JS.API.STREAM.{what}.{self.stream}", orjson.dumps(wanted))
        answer: dict[str, Any] = orjson.loads(message.data)
        if (error := answer.get("error")) is not None:
            raise NatsUnavailable(f"JetStream refused {what} of {self.stream}: {error.get('description')}")
        return answer

    async def _send(self, nuid: str, source: AsyncIterable[bytes], in_flight: deque[asyncio.Future[Ack]]) -> Draft:
        subject = object_chunks_subject(self.bucket, nuid)
        chunk_bytes = min(CHUNK_BYTES, self._link.client.max_payload)
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
        # Shielded: after a cancellation the ack is still awaited, before the chunks are purged.
        await asyncio.shield(in_flight[0])
        in_flight.popleft()

    async def _publish_meta(self, stored: StoredObject, condition: Mapping[str, str]) -> Ack:
        subject = object_meta_subject(self.bucket, stored.name)
        # None is left out: other clients accept some fields only as a string or a number.
        payload = stored.model_dump_json(exclude_none=True).encode()
        return await self._link.publish(subject, payload, {NATS_ROLLUP: "sub", **condition})

    async def _purge_upload(
        self, nuid: str, *, in_flight: Iterable[asyncio.Future[Ack]] = (), once_more: bool = False
    ) -> None:
        """Purge a draft. `once_more`: some chunks may still arrive, so purge again later."""
        self._leftovers[nuid] = _Leftover(None)
        # JetStream may purge before it stores chunks sent earlier, so their acks are awaited first.
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

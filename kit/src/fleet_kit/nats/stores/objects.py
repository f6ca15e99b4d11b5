"""Lists and reads the objects of a JetStream object store without a consumer.

The library reads through a consumer, which the NATS users of workers may not make, and no ranges: see ADR 13.
"""

import base64
import binascii
import hashlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from fleet_contracts.messages import Document, MalformedMessage
from fleet_contracts.names import object_chunks_subject, object_meta_subject, object_metas_subject, object_stream

from ...errors import NatsUnavailable
from ..link import NatsLink
from ..messages import StoredMessage, last_message, messages_of

logger = logging.getLogger(__name__)

DIGEST_PREFIX = "SHA-256="
CHUNK_BYTES = 128 * 1024
# A reader holds two pages in memory.
_PAGE_BYTES = 1024 * 1024
_METAS_PER_PAGE = 256
# How often the position of a chunk is guessed before all chunks from there on are read.
_MOST_READS = 16


class ObjectDamaged(NatsUnavailable):
    """An object is not what was once stored."""


def _first_values(headers: Any) -> Any:
    """The first value of each header: some clients write a string, others a list of strings."""
    if not isinstance(headers, dict):
        return {}
    return {name: value[0] if isinstance(value, list) and value else value for name, value in headers.items()}


class StoredObject(Document):
    """The meta message of an object, as the object store's format defines it, and where it was found."""

    name: str
    bucket: str = ""
    nuid: str
    size: int = 0
    chunks: int = 0
    digest: str | None = None
    mtime: str | None = None
    deleted: bool | None = None
    headers: Annotated[dict[str, str], BeforeValidator(_first_values)] = {}
    options: dict[str, Any] | None = None
    # The stream sequence of the message; it rises with every change of the object.
    sequence: int = Field(0, exclude=True)
    # When JetStream stored the message, in unix seconds.
    modified: float = Field(0.0, exclude=True)

    @property
    def sha256_hex(self) -> str | None:
        """The digest in hex; None if it is missing or of another kind."""
        kind, _, text = (self.digest or "").partition("=")
        if kind.upper() != "SHA-256":
            return None
        try:
            return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()
        except (binascii.Error, ValueError):
            return None

    @property
    def chunk_bytes(self) -> int:
        """The size of every chunk but the last; 0 if the meta does not name it."""
        size = (self.options or {}).get("max_chunk_size")
        return size if isinstance(size, int) and size > 0 else 0


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a store at one moment, ordered by their latest change, oldest first."""

    objects: list[StoredObject]
    # Tombstones of deleted objects.
    deleted: list[StoredObject]
    # The sequence of the latest change of any object (0: there was none): what a compare-and-set expects.
    sequence: int


class ObjectStore:
    """Reads one object store; needs direct gets on its stream and nothing else."""

    def __init__(self, link: NatsLink, bucket: str) -> None:
        self.bucket = bucket
        self.stream = object_stream(bucket)
        self._link = link

    async def list(self) -> Listing:
        """Every object. A concurrent change is seen in its old or its new state; `sequence` shows which."""
        found: dict[str, StoredObject] = {}
        sequence = 0
        subject = object_metas_subject(self.bucket)
        while page := await messages_of(self._link, self.stream, subject, after=sequence, limit=_METAS_PER_PAGE):
            sequence = page[-1].sequence
            found |= {message.subject: stored for message in page if (stored := _stored_object(message)) is not None}
        by_age = sorted(found.values(), key=lambda stored: stored.sequence)
        return Listing(
            objects=[stored for stored in by_age if not stored.deleted],
            deleted=[stored for stored in by_age if stored.deleted],
            sequence=sequence,
        )

    async def find(self, name: str, *, linearizable: bool = False) -> StoredObject | None:
        """The object of that name, unless it is deleted."""
        subject = object_meta_subject(self.bucket, name)
        message = await last_message(self._link, self.stream, subject, linearizable=linearizable)
        stored = None if message is None else _stored_object(message)
        return None if stored is None or stored.deleted else stored

    async def read(self, stored: StoredObject, *, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """The bytes from `start` up to `stop`, piece by piece; ObjectDamaged if they are not all there.

        The last piece is held back until size and digest (of a whole object) are verified, so a read that completes
        is correct.
        """
        stop = stored.size if stop is None else min(stop, stored.size)
        if start >= stop and stored.size > 0:
            return
        whole = hashlib.sha256() if start == 0 and stop == stored.size else None
        index, after = await self._place_of(stored, start // stored.chunk_bytes if stored.chunk_bytes else 0)
        position = index * stored.chunk_bytes
        held = b""
        subject = object_chunks_subject(self.bucket, stored.nuid)
        while position < stop:
            page = await messages_of(self._link, self.stream, subject, after=after, max_bytes=_PAGE_BYTES)
            if not page:
                raise ObjectDamaged(
                    f"the object {stored.name} ends after {position} of {stored.size} bytes", at=position
                )
            after = page[-1].sequence
            for chunk in page:
                if whole is not None:
                    whole.update(chunk.data)
                piece = chunk.data[max(start - position, 0) : max(stop - position, 0)]
                position += len(chunk.data)
                if index > 0 and position < stored.size and len(chunk.data) != stored.chunk_bytes:
                    raise ObjectDamaged(f"the object {stored.name} has chunks of several sizes; read it as a whole")
                if piece:
                    if held:
                        yield held
                    held = piece
        if stop == stored.size and position != stored.size:
            raise ObjectDamaged(f"the object {stored.name} has {position} bytes instead of {stored.size}")
        if whole is not None and stored.sha256_hex is not None and whole.hexdigest() != stored.sha256_hex:
            raise ObjectDamaged(f"the object {stored.name} is damaged: its digest is not the one that was stored")
        if held:
            yield held

    async def _place_of(self, stored: StoredObject, wanted: int) -> tuple[int, int]:
        """The position of the wanted chunk or of one before it: its index, and the sequence before it.

        The chunks of an object are stored in order, with those of others in between. The server returns how many
        chunks follow the one it found, hence its index; the position of the wanted one is estimated from that.
        """
        if wanted <= 0 or stored.chunks != -(-stored.size // stored.chunk_bytes):
            return 0, 0
        subject = object_chunks_subject(self.bucket, stored.nuid)
        best = (0, 0)
        after = 0
        for _ in range(_MOST_READS):
            found = await messages_of(self._link, self.stream, subject, after=after, limit=1)
            following = found[0].headers.get("Nats-Num-Pending") if found else None
            if following is None or (index := stored.chunks - 1 - int(following)) > wanted:
                break
            best = (index, found[0].sequence - 1)
            if index == wanted:
                break
            after = best[1] + wanted - index
        return best


def _stored_object(message: StoredMessage) -> StoredObject | None:
    """The object of a meta message; None for a link to another object or an unreadable message."""
    try:
        stored = StoredObject.decode(message.data)
    except MalformedMessage as error:
        logger.warning("an object's meta at %s is not readable: %s", message.subject, error)
        return None
    if (stored.options or {}).get("link"):
        return None
    return stored.model_copy(update={"sequence": message.sequence, "modified": message.stored_at})

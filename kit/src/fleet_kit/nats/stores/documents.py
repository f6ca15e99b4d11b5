"""Typed values in a KV bucket, and the one loop that changes them: read, apply a transition, compare-and-set."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Generic, TypeVar

from fleet_contracts.messages import Document, MalformedMessage

from ..link import WrongRevision
from .kv import Bucket

T = TypeVar("T", bound=Document)

# What the value becomes: another value, the same one (nothing to do), or None to leave a missing one missing.
Transition = Callable[[T | None], T | Awaitable[T | None] | None]


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A value and the revision that it has in the bucket."""

    value: T
    revision: int
    # Whether the call that returned this has written it.
    is_new: bool = False


class Documents(Generic[T]):
    """The values of one kind in a bucket. A subclass may encode, decode or write them in its own way."""

    def __init__(self, bucket: Bucket, kind: type[T]) -> None:
        self.bucket = bucket
        self._kind = kind

    def decode(self, key: str, data: bytes) -> T:
        return self._kind.decode(data)

    def encode(self, value: T) -> bytes:
        return value.encode()

    async def read(self, key: str, *, linearizable: bool = False, lenient: bool = False) -> Stored[T] | None:
        """The value of a key; None if there is none.

        A value that cannot be decoded is a MalformedMessage; with `lenient` it counts as missing.
        """
        value, revision = await self._look_up(key, linearizable, lenient)
        return None if value is None else Stored(value, revision)

    async def write(self, key: str, value: T, *, revision: int) -> int:
        """Write a key whose latest revision is the one given (0: none); returns the new one."""
        return await self.bucket.update(key, self.encode(value), revision=revision)

    async def change(
        self,
        key: str,
        transition: Transition[T],
        *,
        known: Stored[T] | None = None,
        only_revision: int | None = None,
        linearizable: bool = False,
        lenient: bool = False,
        most_tries: int | None = None,
        on_conflict: Callable[[], None] | None = None,
    ) -> Stored[T] | None:
        """Apply a transition to what is there now and write the result, again if another writer was first.

        Returns what is there afterwards. Whatever the transition raises ends the change. A compare-and-set corrects
        a stale read; so that nothing is left undone because of one, a transition that has nothing to do is asked
        again with a linearizable read.

        `known` is tried before anything is read. With `only_revision`, a key of any other revision is left as it is.
        With `lenient`, a value that cannot be decoded counts as missing and is overwritten.
        After `most_tries` the last WrongRevision is raised.
        """
        tries = 0
        while True:
            is_current = known is None and linearizable
            value: T | None
            if known is not None:
                value, revision, known = known.value, known.revision, None
            else:
                value, revision = await self._look_up(key, linearizable, lenient)
            after = value
            if only_revision in (None, revision):
                result = transition(value)
                after = await result if isawaitable(result) else result
            if after is None or after == value:
                if is_current:
                    return None if value is None else Stored(value, revision)
            else:
                try:
                    return Stored(after, await self.write(key, after, revision=revision), is_new=True)
                except WrongRevision:
                    tries += 1
                    if tries == most_tries:
                        raise
                    if on_conflict is not None:
                        on_conflict()
            linearizable = True

    async def _look_up(self, key: str, linearizable: bool, lenient: bool) -> tuple[T | None, int]:
        """The value, if there is one, and the latest revision of the key, that of a delete marker included."""
        entry, revision = await self.bucket.look_up(key, linearizable=linearizable)
        if entry is None:
            return None, revision
        try:
            return self.decode(key, entry.value), revision
        except MalformedMessage:
            if not lenient:
                raise
            return None, revision

"""Use cases of dead letters: list them, requeue their runs, delete them."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import astuple, dataclass

import orjson

from fleet_contracts.log_events import LetterMove
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.http.identity import Identity
from fleet_kit.logs.events import service_call
from fleet_kit.logs.setup import failure_fields

from ..dispatch.relay import Relay
from ..errors import DeadLetterNotFound, LetterNotRequeued
from ..read.cursor import CursorSigner, Walk
from ..resources import Part, Resources
from . import reads as dead_letter_reads
from . import writes as dead_letter_writes
from .reads import GroupView, LetterFilter, LetterInFull, LetterPage, LetterView
from .writes import Deletion, Refused, Requeued, Requeueing, WhyNot

logger = logging.getLogger(__name__)

# Bulk operations commit this many letters at a time, so that other writes do not wait long.
_PAGE = 100
# After this time a request returns what it has done, with a cursor to continue from.
_LONGEST_SECONDS = 5.0
_MOST_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class LetterSkipped:
    id: int
    reason: str
    detail: str
    run_status: RunStatus | None


@dataclass(frozen=True, slots=True)
class LettersRequeued:
    requeued: int
    skipped: list[LetterSkipped]
    remaining: int
    last_due_at: float | None
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class LettersDeleted:
    deleted: int
    more: bool
    next_cursor: str | None


class DeadLetters(Part):
    def __init__(self, shared: Resources, *, cursors: CursorSigner, relay: Relay) -> None:
        super().__init__(shared)
        self._cursors = cursors
        self._relay = relay

    async def newest(
        self, wanted: LetterFilter, *, limit: int, cursor: str | None
    ) -> tuple[Sequence[LetterView], str | None]:
        """A page of letters, and the cursor of the next one if there may be one."""
        scope = _scope("newest", wanted)
        page = await self._page(wanted, limit=limit, position=self._position(cursor, scope), oldest_first=False)
        return page.rows, self._cursor(page.next_position, scope)

    async def find(self, letter_id: int, *, tenant_id: str) -> LetterInFull:
        """The letter and the present state of its run, as the ledger knows it."""
        rows = await self._database.fetch(dead_letter_reads.letter_with_run(letter_id, tenant_id=tenant_id))
        if not rows:
            raise DeadLetterNotFound(letter_id=letter_id)
        return rows[0]

    async def groups(self, tenant_id: str, *, limit: int) -> Sequence[GroupView]:
        return await self._database.fetch(dead_letter_reads.newest_groups(tenant_id, limit=limit))

    async def total_open(self, tenant_id: str) -> int:
        [total] = await self._database.fetch(dead_letter_reads.open_letters(tenant_id))
        return total

    async def requeue(self, letter_id: int, caller: Identity) -> tuple[RunSnapshot, list[int]]:
        """Give the run of the letter a new attempt and close all its open letters; returns the run and their ids."""
        with service_call(logger, "runs", "requeue", entity_id=f"letter:{letter_id}"):
            self._link.require()
            now = time.time()
            done = await self._requeue(Requeueing([letter_id], caller.tenant_id, _name_of(caller), now, due_at=now))
            for refused in done.refused:
                if refused.why is WhyNot.NOT_FOUND:
                    raise DeadLetterNotFound(letter_id=letter_id)
                raise LetterNotRequeued(
                    why_not(refused), letter_id=letter_id, reason=refused.why, run_status=refused.run_status
                )
            [run] = done.runs
            return run, [letter.id for letter in done.letters]

    async def requeue_all(
        self,
        wanted: LetterFilter,
        caller: Identity,
        *,
        rate_per_sec: float,
        limit: int,
        start_at: float | None,
        cursor: str | None,
    ) -> LettersRequeued:
        """Requeue the runs of up to `limit` letters, the oldest first, at `rate_per_sec`."""
        scope = _scope("oldest", wanted)
        requeued = remaining = 0
        skipped: list[LetterSkipped] = []
        last_due_at: float | None = None
        with service_call(logger, "runs", "requeue_letters") as logged:
            self._link.require()
            position = self._position(cursor, scope)
            now = time.time()
            spacing = 1 / rate_per_sec
            due_at = max(now, start_at or 0.0)
            async for page in self._walk(wanted, limit=limit, position=position):
                position = page.next_position
                if not page.rows:
                    continue
                ids = [row.id for row in page.rows]
                done = await self._requeue(
                    Requeueing(ids, caller.tenant_id, _name_of(caller), now, due_at=due_at, spacing_seconds=spacing)
                )
                requeued += len(done.runs)
                skipped += [
                    LetterSkipped(refused.letter_id, refused.why.value, why_not(refused), refused.run_status)
                    for refused in done.refused
                    # A letter that was deleted since the page was read is not reported.
                    if refused.why is not WhyNot.NOT_FOUND
                ]
                if done.last_due_at is not None:
                    last_due_at = done.last_due_at
                    due_at = done.last_due_at + spacing
            if position is not None:
                left = dead_letter_reads.count_left(wanted, position=position, most=_MOST_COUNTED)
                [remaining] = await self._database.fetch(left)
            logged["letters"] = requeued
        return LettersRequeued(requeued, skipped, remaining, last_due_at, self._cursor(position, scope))

    async def delete(self, letter_id: int, caller: Identity) -> None:
        with service_call(logger, "runs", "delete_letter", entity_id=f"letter:{letter_id}"):
            if not await self._remove([letter_id], caller):
                raise DeadLetterNotFound(letter_id=letter_id)

    async def delete_all(
        self, wanted: LetterFilter, caller: Identity, *, limit: int, cursor: str | None
    ) -> LettersDeleted:
        """Delete up to `limit` letters, the oldest first."""
        scope = _scope("oldest", wanted)
        position = self._position(cursor, scope)
        deleted = 0
        with service_call(logger, "runs", "delete_letters") as logged:
            async for page in self._walk(wanted, limit=limit, position=position):
                position = page.next_position
                if page.rows:
                    deleted += await self._remove([row.id for row in page.rows], caller)
            logged["letters"] = deleted
        return LettersDeleted(deleted, more=position is not None, next_cursor=self._cursor(position, scope))

    async def _walk(self, wanted: LetterFilter, *, limit: int, position: int | None) -> AsyncIterator[LetterPage]:
        """Pages with up to `limit` letters in all, until there are no more or the time is up."""
        ends_at = time.monotonic() + _LONGEST_SECONDS
        while limit > 0:
            page = await self._page(wanted, limit=min(limit, _PAGE), position=position, oldest_first=True)
            yield page
            limit -= len(page.rows)
            position = page.next_position
            if position is None or time.monotonic() > ends_at:
                return

    async def _page(
        self, wanted: LetterFilter, *, limit: int, position: int | None, oldest_first: bool
    ) -> LetterPage:
        return await self._database.look(
            lambda connection: dead_letter_reads.read_page(
                connection, wanted, limit=limit, position=position, oldest_first=oldest_first
            )
        )

    def _position(self, cursor: str | None, scope: bytes) -> int | None:
        """The id of the last letter that was read."""
        position = self._cursors.decode(cursor, scope=scope)
        assert position is None or isinstance(position, Walk)  # the scope is that of a list of letters
        return None if position is None else position.before_seq

    def _cursor(self, position: int | None, scope: bytes) -> str | None:
        return None if position is None else self._cursors.encode(Walk(position), scope=scope)

    async def _requeue(self, wanted: Requeueing) -> Requeued:
        done = await self._commits.write(dead_letter_writes.requeue, wanted)
        for letter in done.letters:
            letter.log(LetterMove.REQUEUED)
        await asyncio.gather(*(self._announce(run) for run in done.runs))
        self._relay.wake()
        return done

    async def _announce(self, run: RunSnapshot) -> None:
        try:
            await self._runs.announce(run)
        except (NatsUnavailable, MalformedMessage) as error:
            # The run waits in the ledger. The relay announces it again when it is due; the sweeper repairs the rest.
            logger.info("run %s waits again; KV has it later", run.run_id, extra=failure_fields(error))

    async def _remove(self, letter_ids: Sequence[int], caller: Identity) -> int:
        gone = await self._commits.write(dead_letter_writes.remove, Deletion(letter_ids, caller.tenant_id))
        for letter in gone:
            letter.log(LetterMove.DELETED)
        return len(gone)


def why_not(refused: Refused) -> str:
    """Why the run was not requeued, and what to do instead."""
    match refused.why:
        case WhyNot.NO_RUN:
            return "This letter belongs to no run; submit a new run."
        case WhyNot.RUN_GONE:
            return "The run of this letter is no longer kept; submit a new run."
        case WhyNot.REQUEUED_ALREADY:
            return "This letter was requeued already; look at its run, or at the newest letter of that run."
        case _:
            return f"The run of this letter is {refused.run_status}; only a FAILED run can be requeued."


def _scope(order: str, wanted: LetterFilter) -> bytes:
    return orjson.dumps(["dead letters", order, *astuple(wanted)])


def _name_of(caller: Identity) -> str:
    return caller.api_key_id or caller.tenant_id

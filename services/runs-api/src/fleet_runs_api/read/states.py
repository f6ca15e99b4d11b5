"""The present states of many runs: one query of the ledger, and many reads of KV in flight for those that go on."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.snapshot import RunSnapshot

from ..ledger import reads
from ..ledger.documents import snapshot_of
from ..ledger.rows import KnownState, RunRow, RunState, beginning
from ..resources import Part, Resources
from .results import shown_with_result

logger = logging.getLogger(__name__)

# Documents of so many runs are in memory at a time: half a megabyte each, at most.
_PAGE_RUNS = 25
# What is shown of a page with results, which is in memory until its reader has taken it.
_PAGE_BYTES = 512 * 1024
# Of all callers of this process together.
_MOST_PAGES = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a run."""

    run_id: str
    # None: there is no such run of this tenant.
    state: RunState | None
    # The KV revision of the state; 0: it comes from the ledger.
    revision: int = 0
    # Of a run that has ended: what is shown of it with its result, if that was asked for.
    with_result: bytes | None = None


def state_after(known: RunState, snapshot: RunSnapshot) -> RunState:
    """The state in a snapshot, with the facts that the ledger knows."""
    return known._replace(
        status=snapshot.status,
        attempt=snapshot.attempt,
        worker_id=snapshot.worker_id,
        not_before=snapshot.not_before,
        start_time=snapshot.start_time,
        end_time=snapshot.end_time,
        updated_at=snapshot.updated_at,
        error=beginning(snapshot.error),
        reason=snapshot.reason,
    )


class RunStates(Part):
    def __init__(self, shared: Resources) -> None:
        super().__init__(shared)
        self._pages = asyncio.Semaphore(_MOST_PAGES)

    async def known(self, run_ids: Sequence[str], *, tenant_id: str) -> dict[str, KnownState]:
        """What the ledger knows of those of the runs that belong to the tenant, by id."""
        rows = await self._database.fetch(reads.states_of(run_ids, tenant_id=tenant_id))
        return {row.state.run_id: row for row in rows}

    async def look(self, run_ids: Sequence[str], *, tenant_id: str, with_results: bool) -> AsyncGenerator[list[Seen]]:
        """The states of the runs in order, page by page. NatsUnavailable only if one of them goes on.

        An end in the ledger is final, also if KV was set back to a time before it.
        """
        known = await self.known(run_ids, tenant_id=tenant_id)
        start, size = 0, _PAGE_RUNS
        while start < len(run_ids):
            async with self._pages:
                seen = await self._page(run_ids[start : start + size], known, with_results)
            start += len(seen)
            size = min(2 * len(seen), _PAGE_RUNS)
            yield seen

    async def _page(self, page: Sequence[str], known: Mapping[str, KnownState], with_results: bool) -> list[Seen]:
        """The first of these runs: as many as a page may show."""
        ended = [run_id for run_id in page if run_id in known and known[run_id].state.status.is_terminal]
        documents: dict[str, RunRow] = {}
        if with_results and ended:
            rows = await self._database.fetch(reads.runs_with_documents(ended))
            documents = {row.run_id: row for row in rows}
        if any(run_id in known for run_id in page if run_id not in ended):
            self._link.require()
        look = [self._see(run_id, known.get(run_id), documents.get(run_id), with_results) for run_id in page]
        seen = await asyncio.gather(*look)
        sizes = accumulate(len(one.with_result or b"") for one in seen)
        return seen[: max(1, sum(size <= _PAGE_BYTES for size in sizes))]

    async def _see(self, run_id: str, known: KnownState | None, row: RunRow | None, with_result: bool) -> Seen:
        if known is None:
            return Seen(run_id, None)
        state, reopened = known
        if state.status.is_terminal:
            return Seen(
                run_id, state, with_result=None if row is None else shown_with_result(state, snapshot_of(row))
            )
        try:
            stored = await self._runs.read(run_id, linearizable=True)
        except MalformedMessage as error:
            logger.warning("a snapshot in KV cannot be read, the ledger answers: %s", error)
            stored = None
        # Of a run that was requeued, KV may still have the end before.
        if stored is None or stored.value.reopened < reopened:
            return Seen(run_id, state)
        state = state_after(state, stored.value)
        shown = shown_with_result(state, stored.value) if with_result and state.status.is_terminal else None
        return Seen(run_id, state, stored.revision, shown)

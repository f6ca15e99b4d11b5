"""Lists runs: the newest, a walk through all of them, or those that changed. The cost of a page is bounded."""

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

import orjson
from pydantic import TypeAdapter
from sqlalchemy import Connection

from ...errors import InvalidCursor, InvalidListQuery
from ...ledger.documents import snapshot_of
from ...ledger.rows import RunRow
from ...resources import Part, Resources
from ..cursor import CursorSigner, Difference, Position
from ..schemas import RunSummary
from ..views import RunViews
from . import paging
from . import reads as list_reads
from .reads import RunFilter

_SUMMARY = TypeAdapter(RunSummary)
# How much the clocks of replicas may differ: the next difference begins this long before the present.
_SETTLING_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A request for a page. An empty cursor begins a walk through all runs; None is a plain list."""

    wanted: RunFilter
    limit: int
    in_full: bool = False
    cursor: str | None = None
    updated_after: float | None = None

    @property
    def in_pages(self) -> bool:
        """Whether the caller wants pages with a cursor."""
        return self.cursor is not None or self.updated_after is not None


@dataclass(slots=True)
class Page:
    # Each a JSON object.
    items: list[bytes] = field(default_factory=list)
    next_cursor: str | None = None
    # How many runs match the filter, if there are counters for it.
    total: int | None = None
    # Of a difference: where the next one begins.
    updated_until: float | None = None


class Listing(Part):
    def __init__(self, shared: Resources, *, cursors: CursorSigner, views: RunViews) -> None:
        super().__init__(shared)
        self._cursors = cursors
        self._views = views

    async def page(self, query: ListQuery) -> Page:
        wanted = query.wanted
        if wanted.since is not None and wanted.until is not None and wanted.since > wanted.until:
            raise InvalidListQuery("since is later than until; exchange them")
        scope = _scope(wanted)
        start = self._cursors.decode(query.cursor, scope=scope)
        if not _fits_cursor(start, query.updated_after):
            raise InvalidCursor()

        page = Page()
        rows, following = await self._database.look(lambda connection: self._read(connection, query, start, page))
        page.items = self._rendered(rows)
        page.next_cursor = self._cursors.encode(following, scope=scope) if following else None
        return page

    def _read(
        self, connection: Connection, query: ListQuery, start: Position | None, page: Page
    ) -> tuple[list[RunSummary | RunRow], Position | None]:
        wanted = query.wanted
        if start is None and query.updated_after is not None:
            # Read first: changes that are committed while the rows are read have a later time.
            settled_until = self.settled_until(connection)
            start = paging.difference(connection, wanted, query.updated_after, settled_until=settled_until)
        if isinstance(start, Difference):
            page.updated_until = start.settled_until
            found = paging.changes(connection, wanted, start, limit=query.limit)
        else:
            if wanted.is_counted:
                page.total = list_reads.total(wanted.tenant_id, wanted.counted_parts).first(connection)
            found = paging.newest(
                connection, wanted, start, limit=query.limit, thorough=not query.in_pages, total=page.total
            )
        if not found.seqs:
            return [], found.following
        runs: dict[int, RunSummary | RunRow | None] = {}
        if query.in_full:
            runs.update(list_reads.whole_runs(wanted, found.seqs).all(connection))
        else:
            runs.update(list_reads.summaries(wanted, found.seqs).all(connection))
        return [run for seq in found.seqs if (run := runs.get(seq)) is not None], found.following

    def settled_until(self, connection: Connection) -> float:
        """A time that is earlier than every uncommitted change, of this process or a replica."""
        settled = self._commits.settled_until()
        if not self._database.is_sqlite:
            [oldest] = list_reads.oldest_write().all(connection)
            # Rows still to be inserted get the time of the server's clock, which may be behind ours.
            settled = min(settled, oldest.now) - oldest.age
        return settled - _SETTLING_SECONDS

    def _rendered(self, runs: Sequence[RunSummary | RunRow]) -> list[bytes]:
        why_waiting = self._views.why_waiting_at(time.time())
        items = []
        for run in runs:
            if isinstance(run, RunRow):
                items.append(self._views.public(snapshot_of(run), with_records=True))
                continue
            if (why := why_waiting(run)) is not None:
                run.waiting_reason, run.waiting_detail = why.reason, why.detail
            items.append(_SUMMARY.dump_json(run))
        return items


def _scope(wanted: RunFilter) -> bytes:
    """The tenant and the filters, independent of the order of values."""
    return orjson.dumps(["runs", *(sorted(part) if isinstance(part, tuple) else part for part in astuple(wanted))])


def _fits_cursor(start: Position | None, updated_after: float | None) -> bool:
    """Whether the cursor fits `updated_after`: one of a difference may be used without it, but not with another."""
    if start is None or updated_after is None:
        return True
    return isinstance(start, Difference) and start.updated_after == updated_after

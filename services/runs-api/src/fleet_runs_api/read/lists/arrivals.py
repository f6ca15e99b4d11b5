"""Finds the runs with some labels: those that there are, and then those that are accepted."""

import time
from collections import deque

from sqlalchemy import Connection

from ...resources import Part, Resources
from . import paging
from . import reads as list_reads
from .listing import Listing
from .reads import RunFilter

_WINDOW_ROWS = 1_000
_MOST_WINDOWS = 10


class Arrivals(Part):
    """Each look reads the runs accepted since the one before, through an index."""

    def __init__(self, shared: Resources, *, listing: Listing, wanted: RunFilter) -> None:
        super().__init__(shared)
        self._listing = listing
        self._wanted = wanted
        # Every run up to this one was looked at.
        self._after = 0
        # How far was looked, and when. Below it a run may still appear: of another replica, whose transaction began
        # before that time and is not committed.
        self._marks: deque[tuple[float, int]] = deque()

    async def first(self, *, most: int) -> list[str]:
        """The newest runs that there are, the earliest accepted first."""
        return await self._database.look(lambda connection: self._read_first(connection, most))

    async def next(self) -> list[str]:
        """The runs accepted since then in order; a run may be in two looks."""
        return await self._database.look(self._read_next)

    def _read_first(self, connection: Connection, most: int) -> list[str]:
        latest = list_reads.latest_seq(self._wanted.tenant_id).first(connection) or 0
        self._marks.append((time.time(), latest))
        found = paging.newest(connection, self._wanted, None, limit=most, thorough=True, total=None)
        # Until that is settled, the latest runs are looked at again.
        self._after = max(latest - _WINDOW_ROWS, 0)
        return list_reads.ids_of(found.seqs).all(connection)

    def _read_next(self, connection: Connection) -> list[str]:
        settled = self._listing.settled_until(connection)
        while self._marks and self._marks[0][0] < settled:
            self._after = max(self._after, self._marks.popleft()[1])
        found: list[str] = []
        after = self._after
        for _ in range(_MOST_WINDOWS):
            rows = list_reads.arrived(self._wanted, after=after, size=_WINDOW_ROWS).all(connection)
            found += [row.run_id for row in rows if row.fits]
            after = rows[-1].seq if rows else after
            if len(rows) < _WINDOW_ROWS:
                break
        else:
            # More than one look can take: the next one goes on here.
            self._after = after
        self._marks.append((time.time(), after))
        return found

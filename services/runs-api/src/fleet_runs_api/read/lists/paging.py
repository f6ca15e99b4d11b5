"""Selects the runs of a page: reads one index in windows, up to a bounded number of rows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from ..cursor import Difference, Position, Walk
from . import reads as list_reads
from .reads import Candidate, Guide, RunFilter

# A page that is not full after this many windows is returned as it is, with a cursor to continue. A caller that uses
# no cursor gets more windows, and waits a little longer.
_WINDOW_ROWS = 1_000
_MOST_WINDOWS = 5
_MOST_WINDOWS_IF_THOROUGH = 20

# Larger than the number of any run.
_BEYOND_ALL = 2**63 - 1

_ID_PREFIX = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,28}")


@dataclass(frozen=True, slots=True)
class Found:
    """The `seq` numbers of the runs in order, and the position of the next page, if there may be one."""

    seqs: list[int]
    following: Position | None = None


def difference(
    connection: Connection, wanted: RunFilter, updated_after: float, *, settled_until: float
) -> Difference:
    """The start of a difference: after every run that changed at `updated_after` itself."""
    latest = list_reads.latest_change(wanted.tenant_id).first(connection)
    return Difference(
        updated_after,
        settled_until=max(settled_until, updated_after),
        shown_until=updated_after if latest is None else latest,
        changed_at=updated_after,
        seq=_BEYOND_ALL,
    )


def changes(connection: Connection, wanted: RunFilter, start: Difference, *, limit: int) -> Found:
    """The next runs of a difference. The first page has no upper bound: a run that changes again stays in it."""
    size = _WINDOW_ROWS if list_reads.has_conditions(wanted) else limit + 1
    until = None if start.seq == _BEYOND_ALL else start.shown_until

    def read(last: Candidate | None) -> Sequence[Candidate]:
        position = start if last is None else replace(start, changed_at=last.changed_at, seq=last.seq)
        return list_reads.changes(wanted, position, until=until, size=size).all(connection)

    seqs, last = _gather(read, limit=limit, size=size, most=_MOST_WINDOWS)
    if last is None or last.changed_at > start.shown_until:
        return Found(seqs)
    return Found(seqs, replace(start, changed_at=last.changed_at, seq=last.seq))


def newest(
    connection: Connection, wanted: RunFilter, start: Walk | None, *, limit: int, thorough: bool, total: int | None
) -> Found:
    """The runs accepted before `start`, the newest first.

    `thorough`: the caller uses no cursor, so more windows are read. `total` is how many runs match, if known.
    """
    if total == 0:
        return Found([])
    before = start.before_seq if start else None
    if by_id := _by_id(connection, wanted):
        seqs = [seq for seq in by_id if before is None or seq < before]
        return Found(seqs[:limit], Walk(seqs[limit - 1]) if len(seqs) > limit else None)

    lowest: int | None = None
    if wanted.since is not None:
        lowest = list_reads.lowest_seq(wanted.tenant_id, wanted.since).first(connection)
        if lowest is None:
            return Found([])
    if wanted.until is not None and before is None:
        highest = list_reads.highest_seq(wanted.tenant_id, wanted.until).first(connection)
        if highest is None:
            return Found([])
        before = highest + 1

    guide = _guide(connection, wanted)
    size = limit + 1
    if list_reads.has_conditions(wanted, apart_from=guide):
        size = max(size, _WINDOW_ROWS // list_reads.breadth(wanted, guide))

    def read(last: Candidate | None) -> Sequence[Candidate]:
        below = before if last is None else last.seq
        return list_reads.newest(wanted, guide, before=below, lowest=lowest, size=size).all(connection)

    seqs, last = _gather(
        read,
        limit=limit,
        size=size,
        most=_MOST_WINDOWS_IF_THOROUGH if thorough else _MOST_WINDOWS,
        enough=total if thorough else None,
    )
    return Found(seqs, last and Walk(last.seq))


def _gather(
    read: Callable[[Candidate | None], Sequence[Candidate]],
    *,
    limit: int,
    size: int,
    most: int,
    enough: int | None = None,
) -> tuple[list[int], Candidate | None]:
    """The `seq` numbers of matching rows, and the row after which to continue; None at the end.

    `read` returns the window of `size` rows after a row; `enough` is the number of rows that match in all.
    """
    fitting: list[int] = []
    shown_last: Candidate | None = None
    last: Candidate | None = None
    for _ in range(most):
        rows = read(last)
        for row in rows:
            if not row.fits:
                continue
            if len(fitting) == limit:
                return fitting, shown_last
            fitting.append(row.seq)
            shown_last = row
        if len(rows) < size or (enough is not None and len(fitting) >= enough):
            return fitting, None
        last = rows[-1]
    return fitting, last


def _by_id(connection: Connection, wanted: RunFilter) -> list[int]:
    """The runs whose id begins with the text, the newest first; none if the text is not the beginning of an id."""
    prefix = (wanted.text or "").lower()
    if _ID_PREFIX.fullmatch(prefix) is None:
        return []
    found = list_reads.with_id_prefix(wanted, prefix).all(connection)
    return sorted((run.seq for run in found if run.fits), reverse=True)


def _guide(connection: Connection, wanted: RunFilter) -> Guide:
    """The part of the filter that leaves the fewest runs to read."""
    if wanted.workflow_yaml_sha256 is not None:
        return "workflow_yaml_sha256"
    parts = wanted.counted_parts
    if len(parts) <= 1:
        return next(iter(parts), "tenant_id")
    return min(parts, key=lambda name: list_reads.total(wanted.tenant_id, {name: parts[name]}).first(connection) or 0)

"""SQL that reads dead letters. A page reads a bounded number of rows, whatever the filter."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Subquery, and_, func, select, union_all

from ..ledger.tables import dead_letter_groups as _groups
from ..ledger.tables import dead_letters as _letters
from ..ledger.tables import runs as _runs
from .letter import LetterState

# How many letters a page may read before it returns what it has found so far.
MOST_LOOKED_AT = 2000

_SHOWN = tuple(
    _letters.c[name]
    for name in (
        "id", "run_id", "flow_name", "tag", "reason", "error", "error_type", "fingerprint", "worker_id", "attempt",
        "num_delivered", "subject", "at", "state", "requeued_at", "requeued_by",
    )
)  # fmt: skip
# The columns that filters compare.
_FILTERED = tuple(
    _letters.c[name] for name in ("id", "state", "reason", "flow_name", "tag", "run_id", "fingerprint", "at")
)


@dataclass(frozen=True, slots=True)
class LetterFilter:
    tenant_id: str
    states: tuple[LetterState, ...] = (LetterState.OPEN,)
    reason: str | None = None
    flow_name: str | None = None
    tag: str | None = None
    run_id: str | None = None
    fingerprint: str | None = None
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class LetterPage:
    rows: Sequence[Row[Any]]
    # The id to go on from; None: there are no more.
    next_position: int | None


def read_page(
    connection: Connection,
    wanted: LetterFilter,
    *,
    limit: int,
    position: int | None = None,
    oldest_first: bool = False,
) -> LetterPage:
    """A page of letters, ordered by id. A page may be short or empty without being the last."""
    rows = connection.execute(page(wanted, limit=limit, position=position, oldest_first=oldest_first)).all()
    if len(rows) > limit:
        return LetterPage(rows[:limit], rows[limit - 1].id)
    most = _most_looked_at(wanted, limit)
    looked_at = _looked_at(wanted, position, oldest_first, most)
    end = func.max(looked_at.c.id) if oldest_first else func.min(looked_at.c.id)
    count, last = connection.execute(select(func.count(), end).select_from(looked_at)).one()
    return LetterPage(rows, last if count == most else None)


def page(wanted: LetterFilter, *, limit: int, position: int | None = None, oldest_first: bool = False) -> Select[Any]:
    """The letters of a page and one more, which shows that there is another page."""
    looked_at = _looked_at(wanted, position, oldest_first, _most_looked_at(wanted, limit))
    return (
        select(*_SHOWN)
        .join(looked_at, looked_at.c.id == _letters.c.id)
        .where(*_matching(wanted, looked_at))
        .order_by(looked_at.c.id.asc() if oldest_first else looked_at.c.id.desc())
        .limit(limit + 1)
    )


def count_left(wanted: LetterFilter, *, position: int, most: int) -> Select[Any]:
    """Count the letters that match among the next `most` after a position, the oldest first."""
    looked_at = _looked_at(wanted, position, True, most)
    return select(func.count()).select_from(looked_at).where(*_matching(wanted, looked_at))


def letter_with_run(letter_id: int, *, tenant_id: str) -> Select[Any]:
    return (
        select(
            *_SHOWN,
            _runs.c.status.label("run_status"),
            _runs.c.attempt.label("run_attempt"),
            _runs.c.updated_at.label("run_updated_at"),
        )
        .outerjoin(_runs, and_(_runs.c.run_id == _letters.c.run_id, _runs.c.tenant_id == _letters.c.tenant_id))
        .where(
            _letters.c.id == letter_id,
            _letters.c.tenant_id == tenant_id,
            _letters.c.state != LetterState.DELETED,
        )
    )


def unfinished(run_ids: Iterable[str]) -> Select[Any]:
    """Those of the runs that have not ended according to the ledger."""
    return select(_runs.c.run_id).where(_runs.c.run_id.in_(list(run_ids)), _runs.c.finished_at.is_(None))


def newest_groups(tenant_id: str, *, limit: int) -> Select[Any]:
    return (
        select(*(column for column in _groups.c if column.name != "tenant_id"))
        .where(_groups.c.tenant_id == tenant_id)
        .order_by(_groups.c.last_at.desc())
        .limit(limit)
    )


def open_letters(tenant_id: str) -> Select[Any]:
    """The number of a tenant's open letters, from its groups."""
    return select(func.coalesce(func.sum(_groups.c.total), 0)).where(_groups.c.tenant_id == tenant_id)


def count_open(*, most: int) -> Select[Any]:
    """The number of open letters of all tenants, up to `most`. Adding up groups would have no such limit."""
    found = select(_letters.c.state).where(_letters.c.state == LetterState.OPEN).limit(most).subquery()
    return select(func.count()).select_from(found)


def _most_looked_at(wanted: LetterFilter, limit: int) -> int:
    """How many letters a page reads. Filtered by state alone, it shows every letter that it reads."""
    plain = wanted == LetterFilter(wanted.tenant_id, wanted.states)
    return limit + 1 if plain else MOST_LOOKED_AT


def _looked_at(wanted: LetterFilter, position: int | None, oldest_first: bool, most: int) -> Subquery:
    """The letters that an index gives in the order of their ids, from the position on."""
    if wanted.run_id is not None:
        found_by = [_letters.c.run_id == wanted.run_id]
    elif wanted.fingerprint is not None:
        found_by = [_letters.c.fingerprint == wanted.fingerprint]
    else:
        # The index is ordered within each state, so the first letters of each state are enough.
        found_by = [_letters.c.state == state for state in wanted.states]
    beyond: list[ColumnElement[bool]] = []
    if position is not None:
        beyond = [_letters.c.id > position if oldest_first else _letters.c.id < position]
    order = _letters.c.id.asc() if oldest_first else _letters.c.id.desc()
    parts = [
        select(*_FILTERED)
        .where(_letters.c.tenant_id == wanted.tenant_id, condition, *beyond)
        .order_by(order)
        .limit(most)
        .subquery()
        for condition in found_by
    ]
    if len(parts) == 1:
        return parts[0]
    together = union_all(*(select(part) for part in parts)).subquery()
    return (
        select(together)
        .order_by(together.c.id.asc() if oldest_first else together.c.id.desc())
        .limit(most)
        .subquery()
    )


def _matching(wanted: LetterFilter, looked_at: Subquery) -> list[ColumnElement[bool]]:
    columns = looked_at.c
    values = {
        "reason": wanted.reason,
        "flow_name": wanted.flow_name,
        "tag": wanted.tag,
        "run_id": wanted.run_id,
        "fingerprint": wanted.fingerprint,
    }
    conditions: list[ColumnElement[bool]] = [columns.state.in_(wanted.states)]
    conditions += [columns[name] == value for name, value in values.items() if value is not None]
    if wanted.since is not None:
        conditions.append(columns.at >= wanted.since)
    if wanted.until is not None:
        conditions.append(columns.at < wanted.until)
    return conditions

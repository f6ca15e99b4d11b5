"""SQL that reads dead letters. A page reads a bounded number of rows, whatever the filter."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, Subquery, and_, func, select, union_all

from fleet_contracts.status import RunStatus

from ..ledger.rows import Query
from ..ledger.tables import dead_letter_groups as _groups
from ..ledger.tables import dead_letters as _letters
from ..ledger.tables import runs as _runs
from .letter import LetterState

# How many letters a page may read before it returns what it has found so far.
MOST_LOOKED_AT = 2000


@dataclass(frozen=True, slots=True)
class LetterView:
    id: int
    run_id: str | None
    flow_name: str | None
    tag: str | None
    reason: str
    error: str | None
    error_type: str
    fingerprint: str
    worker_id: str | None
    attempt: int | None
    num_delivered: int | None
    subject: str | None
    at: float
    state: str
    requeued_at: float | None
    requeued_by: str | None


# The present state of a letter's run.
@dataclass(frozen=True, slots=True)
class RunNow:
    status: RunStatus
    attempt: int
    updated_at: float


@dataclass(frozen=True, slots=True)
class LetterInFull(LetterView):
    # None: the letter belongs to no run, or the run is no longer kept.
    run: RunNow | None


@dataclass(frozen=True, slots=True)
class GroupView:
    fingerprint: str
    reason: str
    flow_name: str | None
    error_type: str
    error: str | None
    total: int
    first_at: float
    last_at: float


_SHOWN = tuple(_letters.c[field.name] for field in fields(LetterView))
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
    rows: Sequence[LetterView]
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
    rows = page(wanted, limit=limit, position=position, oldest_first=oldest_first).all(connection)
    if len(rows) > limit:
        return LetterPage(rows[:limit], rows[limit - 1].id)
    most = _most_looked_at(wanted, limit)
    looked_at = _looked_at(wanted, position, oldest_first, most)
    end = func.max(looked_at.c.id) if oldest_first else func.min(looked_at.c.id)
    count, last = connection.execute(select(func.count(), end).select_from(looked_at)).one()
    return LetterPage(rows, last if count == most else None)


def page(
    wanted: LetterFilter, *, limit: int, position: int | None = None, oldest_first: bool = False
) -> Query[LetterView]:
    """The letters of a page and one more, which shows that there is another page."""
    looked_at = _looked_at(wanted, position, oldest_first, _most_looked_at(wanted, limit))
    statement = (
        select(*_SHOWN)
        .join(looked_at, looked_at.c.id == _letters.c.id)
        .where(*_matching(wanted, looked_at))
        .order_by(looked_at.c.id.asc() if oldest_first else looked_at.c.id.desc())
        .limit(limit + 1)
    )
    return Query(statement, LetterView)


def count_left(wanted: LetterFilter, *, position: int, most: int) -> Query[int]:
    """Count the letters that match among the next `most` after a position, the oldest first."""
    looked_at = _looked_at(wanted, position, True, most)
    return Query(select(func.count()).select_from(looked_at).where(*_matching(wanted, looked_at)), int)


def letter_with_run(letter_id: int, *, tenant_id: str) -> Query[LetterInFull]:
    def row(*columns: Any) -> LetterInFull:
        letter, run = columns[: len(_SHOWN)], columns[len(_SHOWN) :]
        return LetterInFull(*(*letter, None if run[0] is None else RunNow(*run)))

    statement = (
        select(*_SHOWN, *(_runs.c[field.name] for field in fields(RunNow)))
        .outerjoin(_runs, and_(_runs.c.run_id == _letters.c.run_id, _runs.c.tenant_id == _letters.c.tenant_id))
        .where(
            _letters.c.id == letter_id,
            _letters.c.tenant_id == tenant_id,
            _letters.c.state != LetterState.DELETED,
        )
    )
    return Query(statement, row)


def unfinished(run_ids: Iterable[str]) -> Query[str]:
    """Those of the runs that have not ended according to the ledger."""
    return Query(select(_runs.c.run_id).where(_runs.c.run_id.in_(list(run_ids)), _runs.c.finished_at.is_(None)), str)


def newest_groups(tenant_id: str, *, limit: int) -> Query[GroupView]:
    of_tenant = select(*(_groups.c[field.name] for field in fields(GroupView))).where(
        _groups.c.tenant_id == tenant_id
    )
    return Query(of_tenant.order_by(_groups.c.last_at.desc()).limit(limit), GroupView)


def open_letters(tenant_id: str) -> Query[int]:
    """The number of a tenant's open letters, from its groups."""
    total = select(func.coalesce(func.sum(_groups.c.total), 0)).where(_groups.c.tenant_id == tenant_id)
    return Query(total, int)


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

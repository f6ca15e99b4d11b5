"""SQL of lists. Every query uses one index and reads a bounded number of rows.

Only one part of a filter selects rows, through its index. Whether the rest of the filter fits is a column of the
result and not a condition: so the planner cannot choose another index, and rows that do not fit count as read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import orjson
from sqlalchemy import Boolean, ColumnElement, Select, and_, func, or_, select, text, true, tuple_, union_all
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from fleet_contracts.status import RunStatus

from ...ledger.rows import RUN_COLUMNS, Query, RunRow, run_row
from ...ledger.tables import counts as _counts
from ...ledger.tables import documents as _documents
from ...ledger.tables import flow_counts as _flow_counts
from ...ledger.tables import runs as _runs
from ..cursor import Difference
from ..schemas import RunSummary

R = TypeVar("R")

# `seq` is nearly in the order of submit times: two runs that are farther apart by time than this number of rows are
# in the same order by `seq`.
_DISORDER_ROWS = 5_000
_MOST_OF_ONE_ID = 1_000


class Candidate(NamedTuple):
    """A run of the index that is read, and whether it fits the whole filter."""

    seq: int
    fits: bool
    changed_at: float = 0.0


class Arrived(NamedTuple):
    seq: int
    run_id: str
    fits: bool


class OldestWrite(NamedTuple):
    now: float
    age: float


_SUMMARY_COLUMNS = tuple(
    _runs.c[name]
    for name in (
        "run_id", "flow_name", "tag", "tags", "status", "attempt", "worker_id", "error", "reason", "submitted_at",
        "updated_at", "heartbeat_at", "started_at", "finished_at", "workflow_yaml_sha256", "failures", "not_before",
        "deadline_at", "rerun_of",
    )
)  # fmt: skip


class _HasLabel(FunctionElement[bool]):
    """Whether a JSON array, the first argument, contains the second one."""

    type = Boolean()
    inherit_cache = True


@compiles(_HasLabel, "sqlite")
def _has_label_in_sqlite(element: _HasLabel, compiler: SQLCompiler, **more: Any) -> str:
    array, label = (compiler.process(clause, **more) for clause in element.clauses)
    return f"EXISTS (SELECT 1 FROM json_each({array}) WHERE value = {label})"  # noqa: S608 - names and bound values


@compiles(_HasLabel, "postgresql")
def _has_label_in_postgresql(element: _HasLabel, compiler: SQLCompiler, **more: Any) -> str:
    array, label = (compiler.process(clause, **more) for clause in element.clauses)
    return f"({array}::jsonb @> jsonb_build_array({label}::text))"


# The part of a filter whose index is used; that of the tenant if there is none.
Guide = Literal["tenant_id", "status", "flow_name", "tag", "workflow_yaml_sha256"]


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A filter for runs. A run must match all parts, and one of the values of each part."""

    tenant_id: str
    statuses: tuple[RunStatus, ...] = ()
    flows: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    # Of the run's `tags`, which describe it.
    labels: tuple[str, ...] = ()
    workflow_yaml_sha256: str | None = None
    text: str | None = None
    # Bounds of the time of submission.
    since: float | None = None
    until: float | None = None

    @property
    def counted_parts(self) -> dict[Guide, Sequence[str]]:
        """The values of the parts that have counters, by column."""
        parts: dict[Guide, Sequence[str]] = {"status": self.statuses, "flow_name": self.flows, "tag": self.tags}
        return {name: values for name, values in parts.items() if values}

    @property
    def is_counted(self) -> bool:
        """Whether there are counters for exactly these runs."""
        others = (self.workflow_yaml_sha256, self.text, self.since, self.until)
        return not self.labels and all(part is None for part in others)


def newest(wanted: RunFilter, guide: Guide, *, before: int | None, lowest: int | None, size: int) -> Query[Candidate]:
    """The next rows of the guide's index, the newest accepted first."""
    fits = _fits(wanted, apart_from=guide)
    bounds = [_runs.c.seq < before] if before is not None else []
    if lowest is not None:
        bounds.append(_runs.c.seq >= lowest)
    parts = [
        select(_runs.c.seq, fits.label("fits"))
        .where(_runs.c.tenant_id == wanted.tenant_id, *value, *bounds)
        .order_by(_runs.c.seq.desc())
        .limit(size)
        for value in _values(wanted, guide)
    ]
    if len(parts) == 1:
        return Query(parts[0], Candidate)
    # Each value has its own limit: otherwise PostgreSQL would sort all their rows instead of merging a few.
    merged = union_all(*(select(part.subquery()) for part in parts)).subquery()
    return Query(select(merged).order_by(merged.c.seq.desc()).limit(size), Candidate)


def changes(wanted: RunFilter, position: Difference, *, until: float | None, size: int) -> Query[Candidate]:
    """The next runs by the time of their latest change."""
    statement = (
        select(_runs.c.seq, _fits(wanted), _runs.c.changed_at)
        .where(
            _runs.c.tenant_id == wanted.tenant_id,
            tuple_(_runs.c.changed_at, _runs.c.seq) > tuple_(position.changed_at, position.seq),
            *([] if until is None else [_runs.c.changed_at <= until]),
        )
        .order_by(_runs.c.changed_at, _runs.c.seq)
        .limit(size)
    )
    return Query(statement, Candidate)


def with_id_prefix(wanted: RunFilter, prefix: str) -> Query[Candidate]:
    """The runs whose id begins so, through the index of the ids."""
    # Eight digits match a handful of runs. Collations sort a dash differently, so the range has digits only.
    digits = prefix[:8]
    fits = and_(
        _runs.c.tenant_id == wanted.tenant_id, _runs.c.run_id.startswith(prefix), _fits(wanted, apart_from="text")
    )
    statement = (
        select(_runs.c.seq, fits)
        .where(_runs.c.run_id >= digits, _runs.c.run_id < digits + "g")
        .limit(_MOST_OF_ONE_ID)
    )
    return Query(statement, Candidate)


def arrived(wanted: RunFilter, *, after: int, size: int) -> Query[Arrived]:
    """The next runs accepted after this one, and whether they fit."""
    statement = (
        select(_runs.c.seq, _runs.c.run_id, _fits(wanted))
        .where(_runs.c.tenant_id == wanted.tenant_id, _runs.c.seq > after)
        .order_by(_runs.c.seq)
        .limit(size)
    )
    return Query(statement, Arrived)


def latest_seq(tenant_id: str) -> Query[int]:
    """The number of the run that was accepted last."""
    return Query(select(_runs.c.seq).where(_runs.c.tenant_id == tenant_id).order_by(_runs.c.seq.desc()).limit(1), int)


def ids_of(seqs: Sequence[int]) -> Query[str]:
    return Query(select(_runs.c.run_id).where(_runs.c.seq.in_(seqs)).order_by(_runs.c.seq), str)


def latest_change(tenant_id: str) -> Query[float]:
    """The time of the latest committed change."""
    latest = select(_runs.c.changed_at).where(_runs.c.tenant_id == tenant_id)
    return Query(latest.order_by(_runs.c.changed_at.desc(), _runs.c.seq.desc()).limit(1), float)


def summaries(wanted: RunFilter, seqs: Sequence[int]) -> Query[tuple[int, RunSummary | None]]:
    """The runs with these numbers; None for one that does not fit any more: it may have changed meanwhile."""
    return Query(_chosen(wanted, seqs, _SUMMARY_COLUMNS), _if_it_fits(_summary))


def whole_runs(wanted: RunFilter, seqs: Sequence[int]) -> Query[tuple[int, RunRow | None]]:
    """Like `summaries`, with the documents of the runs."""
    runs = _chosen(wanted, seqs, RUN_COLUMNS).join(_documents, _documents.c.run_id == _runs.c.run_id)
    return Query(runs, _if_it_fits(run_row))


def _summary(run_id: str, flow_name: str, tag: str, tags: str, *columns: Any) -> RunSummary:
    return RunSummary(run_id, flow_name, tag, orjson.loads(tags), *(*columns, None, None))


def _chosen(wanted: RunFilter, seqs: Sequence[int], columns: Sequence[ColumnElement[Any]]) -> Select[Any]:
    fits = and_(_runs.c.tenant_id == wanted.tenant_id, _fits(wanted))
    return select(_runs.c.seq, fits, *columns).where(_runs.c.seq.in_(seqs))


def _if_it_fits(make: Callable[..., R]) -> Callable[..., tuple[int, R | None]]:
    return lambda seq, fits, *columns: (seq, make(*columns) if fits else None)


def total(tenant_id: str, parts: Mapping[Guide, Sequence[str]]) -> Query[int]:
    """How many runs fit these parts of a filter, from the counters."""
    table = _counts if parts.keys() <= {"status"} else _flow_counts
    query = select(func.coalesce(func.sum(table.c.total), 0)).where(table.c.tenant_id == tenant_id)
    return Query(query.where(*(table.c[name].in_(values) for name, values in parts.items())), int)


def lowest_seq(tenant_id: str, since: float) -> Query[int | None]:
    """The smallest `seq` of the runs submitted at `since` or later; None if there are none."""
    near = select(_runs.c.seq).where(_runs.c.tenant_id == tenant_id, _runs.c.submitted_at >= since)
    rows = near.order_by(_runs.c.submitted_at).limit(_DISORDER_ROWS).subquery()
    return Query(select(func.min(rows.c.seq)), _number_or_none)


def highest_seq(tenant_id: str, until: float) -> Query[int | None]:
    """The largest `seq` of the runs submitted at `until` or before; None if there are none."""
    near = select(_runs.c.seq).where(_runs.c.tenant_id == tenant_id, _runs.c.submitted_at <= until)
    rows = near.order_by(_runs.c.submitted_at.desc()).limit(_DISORDER_ROWS).subquery()
    return Query(select(func.max(rows.c.seq)), _number_or_none)


def oldest_write() -> Query[OldestWrite]:
    """PostgreSQL only: its clock, and the age of the oldest open transaction that writes, of any process."""
    columns = text(
        "extract(epoch FROM clock_timestamp())::float8 AS now, "
        "coalesce(extract(epoch FROM clock_timestamp() - min(xact_start)), 0)::float8 AS age "
        "FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL"
    )
    return Query(select(columns), OldestWrite)


def breadth(wanted: RunFilter, guide: Guide) -> int:
    """How many rows of the index are read for one row of the result, at most."""
    return len(_values(wanted, guide))


def _number_or_none(number: int | None) -> int | None:
    return number


def _values(wanted: RunFilter, guide: Guide) -> list[list[ColumnElement[bool]]]:
    """One list of conditions per value of the guide. Each selects rows through the index."""
    if guide == "tenant_id":
        return [[]]
    values = [wanted.workflow_yaml_sha256] if guide == "workflow_yaml_sha256" else wanted.counted_parts[guide]
    return [[_runs.c[guide] == value] for value in values]


def has_conditions(wanted: RunFilter, *, apart_from: str | None = None) -> bool:
    return bool(_conditions(wanted).keys() - {apart_from})


def _fits(wanted: RunFilter, *, apart_from: str | None = None) -> ColumnElement[bool]:
    conditions = [condition for name, condition in _conditions(wanted).items() if name != apart_from]
    return and_(true(), *conditions)


def _conditions(wanted: RunFilter) -> dict[str, ColumnElement[bool]]:
    conditions: dict[str, ColumnElement[bool]] = {
        name: _runs.c[name].in_(values) for name, values in wanted.counted_parts.items()
    }
    if wanted.labels:
        conditions["labels"] = or_(*(_HasLabel(_runs.c.tags, label) for label in wanted.labels))
    if wanted.workflow_yaml_sha256 is not None:
        conditions["workflow_yaml_sha256"] = _runs.c.workflow_yaml_sha256 == wanted.workflow_yaml_sha256
    if wanted.text is not None:
        conditions["text"] = or_(
            _runs.c.run_id.startswith(wanted.text.lower(), autoescape=True),
            _runs.c.flow_name.icontains(wanted.text, autoescape=True),
            _runs.c.error.icontains(wanted.text, autoescape=True),
        )
    if wanted.since is not None:
        conditions["since"] = _runs.c.submitted_at >= wanted.since
    if wanted.until is not None:
        conditions["until"] = _runs.c.submitted_at <= wanted.until
    return conditions

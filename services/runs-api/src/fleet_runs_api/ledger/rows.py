"""The rows that the ledger's reads return, as types, and the queries that return them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Select

from fleet_contracts.status import RunStatus

from .tables import documents as _documents
from .tables import runs as _runs

R = TypeVar("R")

_LONGEST_ERROR = 500


@dataclass(frozen=True, slots=True)
class Query(Generic[R]):
    """A SELECT, and what makes a value of each of its rows from the columns in order."""

    statement: Select[Any]
    row: Callable[..., R]

    def all(self, connection: Connection) -> list[R]:
        return [self.row(*row) for row in connection.execute(self.statement)]

    def first(self, connection: Connection) -> R | None:
        row = connection.execute(self.statement).first()
        return None if row is None else self.row(*row)


class Kind(NamedTuple):
    """The fields by which runs are counted, besides their status."""

    tenant_id: str
    flow_name: str
    tag: str


class Known(NamedTuple):
    """The part of the ledger's record of a run that the rules for snapshots need."""

    status: RunStatus
    attempt: int
    revision: int
    failures: int = 0
    reopened: int = 0
    not_before: float | None = None


class RunRecord(NamedTuple):
    """The part of the ledger's record of a run that counts and the rules for snapshots need."""

    run_id: str
    kind: Kind
    known: Known


@dataclass(frozen=True, slots=True)
class RunRow:
    """The ledger's record of a run, with its documents."""

    run_id: str
    kind: Kind
    known: Known
    worker_id: str | None
    error: str | None
    reason: str | None
    updated_at: float
    dispatch: int
    job_sequence: int | None
    job: str
    # The last snapshot that was seen.
    snapshot: str | None


@dataclass(frozen=True, slots=True)
class UncheckedRun:
    run_id: str
    dispatch: int
    job_sequence: int | None
    tag: str
    known: Known


@dataclass(frozen=True, slots=True)
class OutboxRow:
    kind: str
    run_id: str
    dispatch: int
    # None: the run was withdrawn.
    run: RunRow | None

    @property
    def unfinished(self) -> RunRow | None:
        """The run, if it was neither withdrawn nor has ended."""
        return self.run if self.run is not None and not self.run.known.status.is_terminal else None


class RunRevision(NamedTuple):
    """A run, and the KV revision that its row reflects."""

    run_id: str
    revision: int


class QueuedRun(NamedTuple):
    run_id: str
    job_sequence: int


class OverdueRun(NamedTuple):
    run_id: str
    deadline_at: float


class RunState(NamedTuple):
    """The state of a run without its documents."""

    run_id: str
    flow_name: str
    tag: str
    status: RunStatus
    attempt: int
    worker_id: str | None
    submitted_at: float
    not_before: float | None
    start_time: float | None
    end_time: float | None
    updated_at: float
    # Its beginning.
    error: str | None
    reason: str | None


class KnownState(NamedTuple):
    """The state of a run, and how often it was requeued."""

    state: RunState
    reopened: int


class StatusTotal(NamedTuple):
    status: RunStatus
    total: int


class AttemptRow(NamedTuple):
    attempt: int
    outcome: str
    worker_id: str | None
    started_at: float | None
    ended_at: float
    error: str | None
    # JSON, or None.
    wheels: str | None


@dataclass(frozen=True, slots=True)
class DecisionView:
    at: float
    kind: str
    attempt: int
    reason: str


class JobPlace(NamedTuple):
    """The queue of a run, and the stream sequence of its latest job, if the ledger knows it."""

    tag: str
    job_sequence: int | None


def beginning(error: str | None) -> str | None:
    """The part of an error that the state of a run has."""
    return error and error[:_LONGEST_ERROR]


KIND_COLUMNS = tuple(_runs.c[name] for name in Kind._fields)
KNOWN_COLUMNS = tuple(_runs.c[name] for name in Known._fields)
RECORD_COLUMNS = (_runs.c.run_id, *KIND_COLUMNS, *KNOWN_COLUMNS)
RUN_COLUMNS = (
    *RECORD_COLUMNS, _runs.c.worker_id, _runs.c.error, _runs.c.reason,
    _runs.c.updated_at, _runs.c.dispatch, _runs.c.job_sequence, _documents.c.job, _documents.c.snapshot,
)  # fmt: skip


def run_record(run_id: str, *columns: Any) -> RunRecord:
    """Made from RECORD_COLUMNS."""
    kind = len(KIND_COLUMNS)
    return RunRecord(run_id, Kind(*columns[:kind]), Known(*columns[kind:]))


def run_row(*columns: Any) -> RunRow:
    """Made from RUN_COLUMNS."""
    end = len(RECORD_COLUMNS)
    return RunRow(*run_record(*columns[:end]), *columns[end:])

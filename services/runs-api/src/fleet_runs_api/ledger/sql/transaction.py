"""A transaction of the ledger, as it is passed to everything that writes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, CursorResult, Executable, Table
from sqlalchemy.dialects import postgresql, sqlite

from ..counting import ADD, ADD_BY_FLOW, RunCounts
from ..letter_groups import LetterGroups
from ..rows import Query
from .pipelining import Pipeline
from .prepared import Prepared


class _OfRun(Protocol):
    @property
    def run_id(self) -> str: ...


I = TypeVar("I")  # noqa: E741
OfRun = TypeVar("OfRun", bound=_OfRun)
R = TypeVar("R")
T = TypeVar("T")


class Transaction:
    """A connection with an open transaction, and the rows that all processes share, which are written last."""

    def __init__(self, connection: Connection, *, may_be_committed: bool = False) -> None:
        self.connection = connection
        # An earlier try of this transaction may have been committed, although its answer was lost: for writes that
        # must not be done twice.
        self.may_be_committed = may_be_committed
        self.counts = RunCounts()
        self.letter_groups = LetterGroups()
        self._pipeline = Pipeline(connection)
        self._is_sqlite = connection.dialect.name == "sqlite"

    @classmethod
    @contextmanager
    def on(cls, connection: Connection, *, may_be_committed: bool = False) -> Iterator["Transaction"]:
        """A transaction of this connection, which is committed unless the block raises."""
        with connection.begin():
            transaction = cls(connection, may_be_committed=may_be_committed)
            yield transaction
            transaction.settle()
            transaction._pipeline.commit()

    def execute(self, statement: Executable, values: Any = None) -> CursorResult[Any]:
        self._pipeline.send()
        return self.connection.execute(statement, values)

    def rows(self, statement: Executable, row: Callable[..., R], values: Any = None) -> list[R]:
        """The rows that a statement returns; `row` makes a value of each of them from the columns in order."""
        return [row(*columns) for columns in self.execute(statement, values)]

    def all(self, query: Query[T]) -> list[T]:
        self._pipeline.send()
        return query.all(self.connection)

    def first(self, query: Query[T]) -> T | None:
        self._pipeline.send()
        return query.first(self.connection)

    def write(self, statement: Prepared, rows: Sequence[tuple[Any, ...]]) -> None:
        """Execute a statement for many rows: on PostgreSQL with the next one whose result is read, or the COMMIT."""
        if not rows:
            return
        if self._is_sqlite:
            self.connection.exec_driver_sql(statement.for_sqlite, list(rows))
        else:
            self._pipeline.add(*statement.for_postgresql(rows))

    def insert(self, table: Table) -> sqlite.Insert | postgresql.Insert:
        """An INSERT of the database in use, which may have an ON CONFLICT."""
        return (sqlite.insert if self._is_sqlite else postgresql.insert)(table)

    def insert_if_new(self, table: Table) -> sqlite.Insert | postgresql.Insert:
        """An INSERT that skips rows that are there already."""
        return self.insert(table).on_conflict_do_nothing()

    def settle(self) -> None:
        """Write the counts; to be called last, before the commit.

        Every process writes these rows. Written last and in a fixed order they are locked for the shortest time, and
        two processes cannot deadlock.
        """
        for statement in self.letter_groups.statements(self.insert):
            self.execute(statement)
        self.write(ADD, self.counts.by_tenant())
        self.write(ADD_BY_FLOW, self.counts.by_flow())


def one_by_one(write: Callable[[Transaction, I], R]) -> Callable[[Transaction, Sequence[I]], list[R]]:
    """Make a batch for the group commit of a function that writes one item."""

    @wraps(write)
    def batch(transaction: Transaction, items: Sequence[I]) -> list[R]:
        return [write(transaction, item) for item in items]

    return batch


def in_order_of_runs(write: Callable[[Transaction, OfRun], R]) -> Callable[[Transaction, Sequence[OfRun]], list[R]]:
    """The same, but items are written in the order of their runs, so that two processes do not deadlock."""

    @wraps(write)
    def batch(transaction: Transaction, items: Sequence[OfRun]) -> list[R]:
        places = sorted(range(len(items)), key=lambda place: items[place].run_id)
        results = {place: write(transaction, items[place]) for place in places}
        return [results[place] for place in range(len(items))]

    return batch

"""A transaction of the ledger, as it is passed to everything that writes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Executable, Table
from sqlalchemy.dialects import postgresql, sqlite

from .counting import RunCounts
from .letter_groups import LetterGroups


class _OfRun(Protocol):
    @property
    def run_id(self) -> str: ...


I = TypeVar("I", bound=_OfRun)  # noqa: E741
R = TypeVar("R")


class Transaction:
    """A connection with an open transaction, and the rows that all processes share, which are written last."""

    def __init__(self, connection: Connection, *, may_be_committed: bool = False) -> None:
        self.connection = connection
        # An earlier try of this transaction may have been committed, although its answer was lost: for writes that
        # must not be done twice.
        self.may_be_committed = may_be_committed
        self.counts = RunCounts()
        self.letter_groups = LetterGroups()

    @classmethod
    @contextmanager
    def begin(cls, engine: Engine) -> Iterator["Transaction"]:
        """A transaction of its own, outside of the group commit."""
        with engine.begin() as connection:
            transaction = cls(connection)
            yield transaction
            transaction.settle()

    def execute(self, statement: Executable, values: Any = None) -> CursorResult[Any]:
        return self.connection.execute(statement, values)

    def rows(self, statement: Executable, values: Any = None) -> list[tuple[Any, ...]]:
        """The rows that a statement returns, to be made into values of a type at once."""
        return [tuple(row) for row in self.connection.execute(statement, values)]

    def insert_if_new(self, table: Table) -> sqlite.Insert | postgresql.Insert:
        """An INSERT that skips rows that are there already."""
        insert = sqlite.insert if self.connection.dialect.name == "sqlite" else postgresql.insert
        return insert(table).on_conflict_do_nothing()

    def each_in_order(self, write: Callable[["Transaction", I], R], items: Sequence[I]) -> list[R]:
        """Write items in the order of their runs, so that two processes do not deadlock; the results are in order."""
        places = sorted(range(len(items)), key=lambda place: items[place].run_id)
        results = {place: write(self, items[place]) for place in places}
        return [results[place] for place in range(len(items))]

    def settle(self) -> None:
        """Write the counts; to be called last, before the commit.

        Every process writes these rows. Written last and in a fixed order they are locked for the shortest time, and
        two processes cannot deadlock.
        """
        self.letter_groups.write(self.connection)
        self.counts.write(self.connection)

"""Statements written once and executed for many rows at a time on the driver itself.

This is the busiest code of the service. SQLAlchemy would spend more time per row on its parameters than SQLite does
on the row. And SQLite gives up the interpreter for every statement: so rows go many to a statement, or the thread
that commits would wait for the interpreter once per row.

The texts are put together from names of tables and columns only; values are always bound.
"""
# ruff: noqa: S608

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError

# SQLite gets chunks of these sizes, so that a few texts are enough and its statement cache keeps them all.
_CHUNKS = (128, 64, 32, 16, 8, 4, 2, 1)


class Prepared(ABC):
    """A statement for rows whose values come in the order of `columns`."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self._table = table.name
        self._columns = list(columns)
        self._texts: dict[int, str] = {}

    def execute(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        # The driver would begin no transaction by itself.
        assert connection.in_transaction()
        cursor = connection.connection.cursor()
        try:
            if connection.dialect.name == "sqlite":
                for chunk in _chunks(rows):
                    cursor.execute(self._for(len(chunk)), [value for row in chunk for value in row])
            else:
                cursor.executemany(self._for_one(), rows)
        except connection.dialect.loaded_dbapi.Error as error:
            raise _named(error, connection) from error
        finally:
            cursor.close()

    @abstractmethod
    def for_one_row(self) -> str:
        """SQL for the values of one row, with a `?` for each in the order of the columns."""

    @abstractmethod
    def for_many_rows(self, values: str) -> str:
        """SQL for many rows; `values` is their VALUES list."""

    def _for_one(self) -> str:
        if 0 not in self._texts:
            self._texts[0] = self.for_one_row().replace("?", "%s")
        return self._texts[0]

    def _for(self, count: int) -> str:
        if count not in self._texts:
            row = f"({', '.join('?' for _ in self._columns)})"
            self._texts[count] = self.for_many_rows(f"VALUES {', '.join([row] * count)}")
        return self._texts[count]


class Inserting(Prepared):
    """`adding`: a column to add to where the row is there already."""

    def __init__(self, table: Table, columns: Sequence[str], *, adding: str | None = None) -> None:
        super().__init__(table, columns)
        self._head = f"INSERT INTO {self._table} ({', '.join(columns)})"
        self._tail = ""
        if adding is not None:
            keys = ", ".join(column.name for column in table.primary_key)
            sum_ = f"{self._table}.{adding} + excluded.{adding}"
            self._tail = f" ON CONFLICT ({keys}) DO UPDATE SET {adding} = {sum_}"

    def for_one_row(self) -> str:
        return f"{self._head} VALUES ({', '.join('?' for _ in self._columns)}){self._tail}"

    def for_many_rows(self, values: str) -> str:
        return f"{self._head} {values}{self._tail}"


class Updating(Prepared):
    """Rows found by `keys` get new `values`; each row of values begins with the new ones and ends with the keys."""

    def __init__(self, table: Table, values: Sequence[str], *, keys: Sequence[str]) -> None:
        super().__init__(table, [*values, *keys])
        self._values = list(values)
        self._keys = list(keys)

    def for_one_row(self) -> str:
        changes = ", ".join(f"{name} = ?" for name in self._values)
        return f"UPDATE {self._table} SET {changes} WHERE {' AND '.join(f'{name} = ?' for name in self._keys)}"

    def for_many_rows(self, values: str) -> str:
        changes = ", ".join(f"{name} = v.{name}" for name in self._values)
        found = " AND ".join(f"{self._table}.{name} = v.{name}" for name in self._keys)
        given = f"WITH v({', '.join(self._columns)}) AS ({values})"
        return f"{given} UPDATE {self._table} SET {changes} FROM v WHERE {found}"


class Deleting(Prepared):
    """Rows found by all of `columns` go; the first one has an index."""

    def for_one_row(self) -> str:
        return f"DELETE FROM {self._table} WHERE {' AND '.join(f'{name} = ?' for name in self._columns)}"

    def for_many_rows(self, values: str) -> str:
        found = " AND ".join(f"t.{name} = v.{name}" for name in self._columns)
        given = f"WITH v({', '.join(self._columns)}) AS ({values})"
        return (
            f"{given} DELETE FROM {self._table} WHERE rowid IN "
            f"(SELECT t.rowid FROM v CROSS JOIN {self._table} AS t WHERE {found})"
        )


def _chunks(rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    begin = 0
    for size in _CHUNKS:
        while len(rows) - begin >= size:
            yield rows[begin : begin + size]
            begin += size


def _named(error: Exception, connection: Connection) -> BaseException:
    """The driver's complaint as the same complaint would look had SQLAlchemy executed the statement."""
    dialect = connection.dialect
    lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)  # type: ignore[arg-type]
    if lost:
        connection.invalidate(error)
    return DBAPIError.instance(
        None, None, error, dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=dialect
    )

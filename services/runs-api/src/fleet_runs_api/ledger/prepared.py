"""Prepared SQL statements that are executed for many rows at a time, directly on the driver.

SQLAlchemy would spend more time per row on parameters than the database does on the row. The SQL is built from names
of tables and columns only; values are always bound.
"""
# ruff: noqa: S608

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import orjson
from sqlalchemy import Float, Integer, Table


class Prepared(ABC):
    """A statement for rows whose values come in the order of `columns`.

    PostgreSQL executes it some time after it is written: there a time in the column `executed_at` becomes the time of
    execution, by the server's clock, if that is later.
    """

    def __init__(self, table: Table, columns: Sequence[str], *, executed_at: str | None = None) -> None:
        self._table = table.name
        self._columns = list(columns)
        self._executed_at = executed_at
        self._types = ", ".join(f"{name} {_postgresql_type(table, name)}" for name in columns)

    @cached_property
    def for_sqlite(self) -> str:
        """The SQL for one row, to be executed for each."""
        return self.for_rows(f"VALUES ({', '.join('?' for _ in self._columns)})")

    @cached_property
    def for_postgresql(self) -> str:
        """The SQL for all rows, which are one parameter: a JSON document."""
        moment = f"greatest(v.{self._executed_at}, extract(epoch FROM clock_timestamp()))"
        values = ", ".join(moment if name == self._executed_at else f"v.{name}" for name in self._columns)
        return self.for_rows(f"SELECT {values} FROM json_to_recordset(%s::json) AS v({self._types})")

    def document(self, rows: Sequence[tuple[Any, ...]]) -> str:
        return orjson.dumps([dict(zip(self._columns, row, strict=True)) for row in rows]).decode()

    @abstractmethod
    def for_rows(self, rows: str) -> str:
        """The SQL; `rows` is a query that returns them."""


class Inserting(Prepared):
    """Inserts rows. If a row exists already, its column `adding` is increased by the new value."""

    def __init__(
        self, table: Table, columns: Sequence[str], *, adding: str | None = None, executed_at: str | None = None
    ) -> None:
        super().__init__(table, columns, executed_at=executed_at)
        self._head = f"INSERT INTO {self._table} ({', '.join(columns)})"
        self._tail = ""
        if adding is not None:
            keys = ", ".join(column.name for column in table.primary_key)
            sum_ = f"{self._table}.{adding} + excluded.{adding}"
            self._tail = f" ON CONFLICT ({keys}) DO UPDATE SET {adding} = {sum_}"

    def for_rows(self, rows: str) -> str:
        return f"{self._head} {rows}{self._tail}"


class Updating(Prepared):
    """Updates the columns `values` of rows found by `keys`; each tuple has the new values first, then the keys."""

    def __init__(self, table: Table, values: Sequence[str], *, keys: Sequence[str]) -> None:
        super().__init__(table, [*values, *keys])
        self._values = list(values)
        self._keys = list(keys)

    def for_rows(self, rows: str) -> str:
        changes = ", ".join(f"{name} = v.{name}" for name in self._values)
        found = " AND ".join(f"{self._table}.{name} = v.{name}" for name in self._keys)
        given = f"WITH v({', '.join(self._columns)}) AS ({rows})"
        return f"{given} UPDATE {self._table} SET {changes} FROM v WHERE {found}"


class Deleting(Prepared):
    """Deletes rows found by all of `columns`. The first column needs an index, and the table a single primary key."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        super().__init__(table, columns)
        (self._key,) = (column.name for column in table.primary_key)

    def for_rows(self, rows: str) -> str:
        found = " AND ".join(f"t.{name} = v.{name}" for name in self._columns)
        given = f"WITH v({', '.join(self._columns)}) AS ({rows})"
        these = f"SELECT t.{self._key} FROM v CROSS JOIN {self._table} AS t WHERE {found}"
        return f"{given} DELETE FROM {self._table} WHERE {self._key} IN ({these})"


def _postgresql_type(table: Table, name: str) -> str:
    """A type wide enough for the column: a text that is too long is refused by the column and not cut here."""
    kind = table.c[name].type
    if isinstance(kind, Integer):
        return "bigint"
    return "double precision" if isinstance(kind, Float) else "text"

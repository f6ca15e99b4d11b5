"""Statements compiled once and executed many rows at a time on the driver itself.

SQLAlchemy's own executemany spends more time per row on its parameters than SQLite does on the row, and this is
the busiest code of the service.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ClauseElement


class Prepared:
    """An insert, update or delete for rows whose values come in the order of `columns`."""

    def __init__(self, statement: Executable, columns: Sequence[str]) -> None:
        assert isinstance(statement, ClauseElement)
        self._statement: ClauseElement = statement
        self._columns = list(columns)
        self._compiled: dict[str, tuple[str, Any]] = {}

    def execute(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        # The driver would begin no transaction by itself.
        assert connection.in_transaction()
        sql, arrange = self._for(connection)
        values = [arrange(row) for row in rows]
        cursor = connection.connection.cursor()
        try:
            cursor.executemany(sql, values)
        except connection.dialect.loaded_dbapi.Error as error:
            raise _named(error, sql, connection) from error
        finally:
            cursor.close()

    def _for(self, connection: Connection) -> tuple[str, Any]:
        dialect = connection.dialect
        if dialect.name not in self._compiled:
            compiled = self._statement.compile(dialect=dialect, column_keys=self._columns)
            positions: list[str] | None = getattr(compiled, "positiontup", None)
            if positions is not None:
                order = [self._columns.index(name) for name in positions]
                arrange: Any = itemgetter(*order) if len(order) > 1 else lambda row: (row[order[0]],)
            else:
                arrange = self._as_named
            self._compiled[dialect.name] = (str(compiled), arrange)
        return self._compiled[dialect.name]

    def _as_named(self, row: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self._columns, row, strict=True))


def _named(error: Exception, sql: str, connection: Connection) -> BaseException:
    """The driver's complaint as the same complaint would look had SQLAlchemy executed the statement."""
    dialect = connection.dialect
    lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)  # type: ignore[arg-type]
    if lost:
        connection.invalidate(error)
    return DBAPIError.instance(
        sql, None, error, dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=dialect
    )

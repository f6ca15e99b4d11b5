"""Pipelines, on PostgreSQL, the statements of a transaction whose results are not read, together with the COMMIT.

Each round trip would cost more than its statement: with a database 0.5 ms away, one client submits 2.2 times as many
runs per second, and 16 clients 1.7 times (bench/ablation.md). Nothing is locked before the statements are sent.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError


class Pipeline:
    """The statements of a transaction that are not sent yet."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._unsent: list[tuple[str, Sequence[tuple[Any, ...]]]] = []

    def add(self, text: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add a statement, to be executed once for the parameters of each row."""
        self._unsent.append((text, rows))

    def commit(self) -> None:
        """Send everything with the COMMIT; SQLAlchemy's own then has nothing left to do."""
        if self._unsent:
            self.add("COMMIT", [()])
            self.send()

    def send(self) -> None:
        """Execute what was added, in one round trip; the failure of a statement fails the transaction."""
        if not self._unsent:
            return
        statements, self._unsent = self._unsent, []
        driver: Any = self._connection.connection.driver_connection
        try:
            with driver.pipeline():
                cursor = driver.cursor()
                for text, rows in statements:
                    if len(rows) == 1:
                        cursor.execute(text, rows[0], prepare=True)
                    else:
                        cursor.executemany(text, rows)
        except self._connection.dialect.loaded_dbapi.Error as error:
            raise named(error, self._connection) from error


def named(error: Exception, connection: Connection) -> BaseException:
    """Wrap the driver's error as SQLAlchemy would have, had it executed the statement."""
    dialect = connection.dialect
    lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)  # type: ignore[arg-type]
    if lost:
        connection.invalidate(error)
    return DBAPIError.instance(
        None, None, error, dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=dialect
    )

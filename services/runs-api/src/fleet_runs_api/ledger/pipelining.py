"""Pipelines, on PostgreSQL, the statements of a transaction whose results are not read, together with the COMMIT.

Each round trip costs more than its statement: it also releases the GIL, and a busy event loop is slow to give it
back. Statements are queued here until then, so a process that is stopped before that has locked nothing yet.
"""

from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

_UNSENT = "fleet.unsent"


def pipeline_writes(engine: Engine) -> None:
    """Enable `send` for this engine: queued statements are executed before SQLAlchemy's next one."""

    @event.listens_for(engine, "before_cursor_execute")
    def send_before(connection: Connection, *_: Any) -> None:
        _execute_all(connection)

    @event.listens_for(engine, "commit")
    def send_with_commit(connection: Connection) -> None:
        if _UNSENT in connection.info:
            send(connection, "COMMIT")
            _execute_all(connection)

    @event.listens_for(engine, "rollback")
    def forget(connection: Connection) -> None:
        # A connection that was lost has no statements left anyway.
        if not connection.invalidated:
            connection.info.pop(_UNSENT, None)


def send(connection: Connection, text: str, *parameters: Any) -> None:
    """Queue a statement, to be executed before the next one or the COMMIT; its failure fails the transaction."""
    connection.info.setdefault(_UNSENT, []).append((text, parameters))


def _execute_all(connection: Connection) -> None:
    statements: list[tuple[str, tuple[Any, ...]]] = connection.info.pop(_UNSENT, [])
    if not statements:
        return
    driver: Any = connection.connection.driver_connection
    try:
        with driver.pipeline():
            for text, parameters in statements:
                driver.cursor().execute(text, parameters, prepare=True)
    except connection.dialect.loaded_dbapi.Error as error:
        raise named(error, connection) from error


def named(error: Exception, connection: Connection) -> BaseException:
    """Wrap the driver's error as SQLAlchemy would have, had it executed the statement."""
    dialect = connection.dialect
    lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)  # type: ignore[arg-type]
    if lost:
        connection.invalidate(error)
    return DBAPIError.instance(
        None, None, error, dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=dialect
    )

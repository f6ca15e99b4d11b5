"""On PostgreSQL the statements of a commit whose answers nobody reads travel together, the COMMIT with them.

Each round trip costs more than its statement: it also gives up the interpreter, and a busy event loop is slow to
give it back. They are kept here until then: a process that is stopped in the middle has locked nothing yet.
"""

from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

_UNSENT = "fleet.unsent"


def pipeline_writes(engine: Engine) -> None:
    """Make `send` known to this engine's connections: what SQLAlchemy executes comes after what was sent before."""

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
        # Of a connection that died nothing is left anyway.
        if not connection.invalidated:
            connection.info.pop(_UNSENT, None)


def send(connection: Connection, text: str, *parameters: Any) -> None:
    """Execute a statement before whatever comes next, the COMMIT at the latest; its failure fails the transaction."""
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
    """The driver's complaint as the same complaint would look had SQLAlchemy executed the statement."""
    dialect = connection.dialect
    lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)  # type: ignore[arg-type]
    if lost:
        connection.invalidate(error)
    return DBAPIError.instance(
        None, None, error, dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=dialect
    )

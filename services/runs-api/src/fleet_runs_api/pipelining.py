"""On PostgreSQL the statements of a commit whose answers nobody reads travel together, the COMMIT with them.

Each round trip costs more than its statement: it also gives up the interpreter, and a busy event loop is slow to
give it back.
"""

from contextlib import AbstractContextManager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

_PIPELINE = "fleet.pipeline"


def pipeline_writes(engine: Engine) -> None:
    """Make `send` known to this engine's connections: what SQLAlchemy executes comes after what was sent before."""

    @event.listens_for(engine, "before_cursor_execute")
    def settle_before(connection: Connection, *_: Any) -> None:
        _settle(connection)

    @event.listens_for(engine, "commit")
    def settle_with_commit(connection: Connection) -> None:
        if _PIPELINE in connection.info:
            send(connection, "COMMIT")
            _settle(connection)

    @event.listens_for(engine, "rollback")
    def give_up(connection: Connection) -> None:
        # Whatever it complains of is rolled back; and nothing is left of a connection that died.
        with suppress(DBAPIError):
            if not connection.invalidated:
                _settle(connection)


def send(connection: Connection, text: str, *parameters: Any) -> None:
    """Execute a statement without waiting for it: it is done when the transaction is, or its failure fails that."""
    driver: Any = connection.connection.driver_connection
    try:
        if _PIPELINE not in connection.info:
            pipeline = driver.pipeline()
            pipeline.__enter__()
            connection.info[_PIPELINE] = pipeline
        driver.cursor().execute(text, parameters, prepare=True)
    except connection.dialect.loaded_dbapi.Error as error:
        raise named(error, connection) from error


def _settle(connection: Connection) -> None:
    """Wait until everything that was sent is done."""
    pipeline: AbstractContextManager[Any] | None = connection.info.pop(_PIPELINE, None)
    if pipeline is None:
        return
    try:
        pipeline.__exit__(None, None, None)
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

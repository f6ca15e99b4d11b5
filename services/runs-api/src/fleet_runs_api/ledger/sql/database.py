"""The connection to SQL: durable commits on SQLite and PostgreSQL, and migrations."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from ...errors import DiskFull, LedgerUnavailable
from ..migrations import HEAD
from ..rows import Query

T = TypeVar("T")

_READERS = 4
# SQLite's page cache for each connection: 32 MiB in all. With five times 32 MB the process grew from 98 to 202 MB by
# 100,000 runs; the kernel caches the pages of the file, too.
_WRITER_CACHE_KIB = 16 * 1024
_READER_CACHE_KIB = 4 * 1024
# Timeout of a read. Every read is one page through an index, so a database that takes longer hangs.
_READ_SECONDS = 10.0
# A server that vanishes is noticed within seconds.
_CONNECTION = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# The server notices a client that vanishes; otherwise it would keep the client's locks.
_KEEPALIVES = "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3"
_WRITER_OPTIONS = (
    # All writes are by key: a plan that scans a table only gets worse as the table grows.
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off "
    # A process that hangs during a transaction does not block the others for long, and a statement not this process.
    "-c lock_timeout=5s -c idle_in_transaction_session_timeout=15s -c statement_timeout=15s"
)
_READER_OPTIONS = (
    # A generic plan for all tenants would be a bad one for the smallest.
    "-c plan_cache_mode=force_custom_plan "
    # The reader has given up by then.
    f"-c statement_timeout={_READ_SECONDS:.0f}s"
)
_READ_ONLY = "25006"
_DISK_FULL = "53100"
_MIGRATION_LOCK = 0x5079_6F63_6F31  # any number that is not used for another advisory lock


@contextmanager
def unavailable_if_away() -> Iterator[None]:
    """Turn the driver's error for a missing, locked or full database into LedgerUnavailable or DiskFull."""
    try:
        yield
    except DBAPIError as error:
        if _has_no_space(error):
            raise DiskFull("no space left on the disk of the ledger; free some and try again") from error
        if not _is_away(error):
            raise
        raise LedgerUnavailable(reason=str(error.orig).strip()) from error
    except NoConnectionFree as error:
        raise LedgerUnavailable(reason="all connections wait for an answer") from error


def _is_away(error: DBAPIError) -> bool:
    """Whether the database is unavailable. Some lost connections and read-only standbys have other error classes."""
    return (
        isinstance(error, OperationalError)
        or error.connection_invalidated
        or getattr(error.orig, "sqlstate", None) == _READ_ONLY
    )


def _has_no_space(error: DBAPIError) -> bool:
    return (
        getattr(error.orig, "sqlite_errorname", None) == "SQLITE_FULL"
        or getattr(error.orig, "sqlstate", None) == _DISK_FULL
    )


class Database:
    """One engine for writes and one for reads; both are lazy, so that no connection is opened here."""

    def __init__(self, url: str) -> None:
        self.url = url
        address = make_url(url)
        self.is_sqlite = address.get_backend_name() == "sqlite"
        # The folder of a SQLite ledger.
        self.folder = Path(address.database or "").absolute().parent if self.is_sqlite else None
        self.writer = self._engine(
            "BEGIN IMMEDIATE", pool_size=1, cache_kib=_WRITER_CACHE_KIB, options=_WRITER_OPTIONS
        )
        self.reader = self._engine("BEGIN", pool_size=_READERS, cache_kib=_READER_CACHE_KIB, options=_READER_OPTIONS)
        # A separate pool: if the database hangs, only these threads hang.
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="ledger-reader")

    def migrate(self) -> None:
        """Bring the schema up to date; safe when several processes start at once."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        found = self._schema_version()
        if found == HEAD:
            return
        if found is not None and found > HEAD:
            reason = f"its schema {found} is of a later version than this one, which knows {HEAD}"
            raise LedgerUnavailable(
                f"The runs ledger cannot be used: {reason}; use that version, or restore a backup.", reason=reason
            )
        # Imported here: most starts find the schema in place, and this is a tenth of a service's start time.
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
        # Not the writer: its plans and timeouts are not for large changes.
        engine = self._engine("BEGIN IMMEDIATE", pool_size=1, cache_kib=_WRITER_CACHE_KIB, options="")
        try:
            with unavailable_if_away(), engine.begin() as connection:
                if not self.is_sqlite:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        finally:
            engine.dispose()

    def _schema_version(self) -> str | None:
        with unavailable_if_away(), self.reader.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            version: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
            return version

    async def fetch(self, query: Query[T]) -> list[T]:
        """All rows of a query."""
        return await self.look(query.all)

    async def look(self, query: Callable[[Connection], T]) -> T:
        """Read in a thread, so that the event loop is not blocked, with a timeout."""
        reading = asyncio.get_running_loop().run_in_executor(self._readers, self.read, query)
        try:
            async with asyncio.timeout(_READ_SECONDS):
                return await reading
        except TimeoutError as error:
            raise LedgerUnavailable(reason=f"no answer within {_READ_SECONDS:.0f} s") from error

    def read(self, query: Callable[[Connection], T]) -> T:
        with unavailable_if_away(), self.reader.connect() as connection:
            return query(connection)

    def dispose(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)
        self.writer.dispose()
        self.reader.dispose()

    def _engine(self, begin: str, *, pool_size: int, cache_kib: int, options: str) -> Engine:
        """`begin` and `cache_kib` are for SQLite, `options` for PostgreSQL."""
        of_sqlite = {"check_same_thread": False, "timeout": 10}
        of_postgresql = {**_CONNECTION, "options": f"-c synchronous_commit=on {_KEEPALIVES} {options}"}
        engine = create_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=0,
            pool_pre_ping=not self.is_sqlite,
            # The text of an error goes to the log; params of runs must not.
            hide_parameters=True,
            connect_args=of_sqlite if self.is_sqlite else of_postgresql,
        )
        if not self.is_sqlite:
            return engine

        @event.listens_for(engine, "connect")
        def set_up(connection: Any, _: Any) -> None:
            # BEGIN is sent explicitly: the driver would begin a write too late to wait for the lock.
            connection.isolation_level = None
            for pragma in (
                "journal_mode=WAL",
                "synchronous=FULL",
                "foreign_keys=ON",
                "temp_store=MEMORY",
                f"cache_size=-{cache_kib}",
            ):
                connection.execute(f"PRAGMA {pragma}")

        @event.listens_for(engine, "begin")
        def say_begin(connection: Connection) -> None:
            connection.exec_driver_sql(begin)

        return engine

"""A COMMIT whose answer was lost: what is tried again is done once, and the answer says what is known."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import OperationalError

from fleet_contracts.status import RunStatus
from fleet_runs_api.accept import acceptance
from fleet_runs_api.accept.acceptance import Acceptance, Withdrawal
from fleet_runs_api.accept.idempotency import Earlier, KeyUse
from fleet_runs_api.errors import LedgerUnavailable
from fleet_runs_api.ledger.documents import NewRun
from fleet_runs_api.ledger.rows import Kind
from fleet_runs_api.ledger.sql.database import Database
from fleet_runs_api.ledger.sql.transaction import Transaction
from fleet_runs_api.ledger.writer import GroupCommit
from fleet_testkit.waiting import eventually

from .conftest import accepting

pytestmark = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@pytest.fixture
async def commits(database: Database) -> AsyncIterator[GroupCommit]:
    commits = GroupCommit(database.writer)
    commits.start()
    yield commits
    await commits.stop()


class Loss:
    """Of the answer to the next commit, and of the connection with it."""

    def __init__(self, database: Database) -> None:
        self.happened = False
        event.listen(database.writer, "commit", self._commit)

    def _commit(self, connection: Connection) -> None:
        if self.happened:
            return
        self.happened = True
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        driver.commit()
        connection.invalidate()
        raise OperationalError(None, None, psycopg.OperationalError("gone"), connection_invalidated=True)


def rows(database: Database, query: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in database.read(lambda connection: connection.execute(text(query)).all())]


def key_of(run: NewRun) -> KeyUse:
    return KeyUse("anonymous", "order:1:1700000000000", "f" * 64, (run.job.run_id,), time.time())


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_run_is_accepted_once(database: Database, commits: GroupCommit, new_run: NewRun, keyed: bool) -> None:
    loss = Loss(database)
    assert await commits.write(acceptance.accept, accepting(new_run, key=key_of(new_run) if keyed else None)) is None
    assert loss.happened
    assert rows(database, "SELECT run_id FROM runs") == [(new_run.job.run_id,)]
    assert rows(database, "SELECT kind, dispatch FROM outbox") == [("dispatch", 1)]
    assert rows(database, "SELECT status, total FROM run_counts") == [("PENDING", 1)]


async def test_a_first_try_that_is_still_under_way_is_waited_for(
    database: Database, commits: GroupCommit, new_run: NewRun, postgres_url: str
) -> None:
    """What the server has of it goes on after the connection has died."""
    elsewhere = Database(postgres_url)
    wanted = accepting(new_run)
    under_way = elsewhere.writer.connect()
    first_try = under_way.begin()
    transaction = Transaction(under_way)
    acceptance.accept(transaction, [wanted])
    transaction.execute(text("SELECT 1"))  # so that it has been sent

    tries: list[None] = []

    def accept(transaction: Transaction, acceptances: Sequence[Acceptance]) -> Sequence[Earlier | None]:
        tries.append(None)
        if len(tries) == 1:
            transaction.connection.invalidate()
            raise OperationalError(None, None, psycopg.OperationalError("gone"), connection_invalidated=True)
        return acceptance.accept(transaction, acceptances)

    second_try = commits.write_soon(accept, wanted)
    waiting = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await eventually(lambda: rows(elsewhere, waiting), what="the second try waiting for the first")
    first_try.commit()
    under_way.close()
    assert await second_try is None
    assert rows(database, "SELECT run_id FROM runs") == [(new_run.job.run_id,)]
    elsewhere.dispose()


async def test_a_key_that_another_has_taken_stays_taken(
    database: Database, commits: GroupCommit, new_run: NewRun
) -> None:
    use = key_of(new_run)
    assert await commits.write(acceptance.accept, accepting(new_run, key=use)) is None
    loss = Loss(database)
    job = new_run.job.model_copy(update={"run_id": "another"})
    other = replace(new_run, job=job)
    earlier = await commits.write(acceptance.accept, accepting(other, key=key_of(other)))
    assert loss.happened
    assert earlier == Earlier(use.fingerprint, use.run_ids)


async def test_a_run_is_withdrawn_once(database: Database, commits: GroupCommit, new_run: NewRun) -> None:
    use = key_of(new_run)
    await commits.write(acceptance.accept, accepting(new_run, key=use))
    loss = Loss(database)
    assert await commits.write(acceptance.withdraw, Withdrawal(new_run.job.run_id, time.time(), use)) is True
    assert loss.happened
    assert rows(database, "SELECT run_id FROM runs") == []
    assert rows(database, "SELECT key FROM idempotency_keys") == []
    assert rows(database, "SELECT kind FROM outbox") == [("withdraw",)]
    assert rows(database, "SELECT status, total FROM run_counts") == [("PENDING", 0)]


async def test_a_run_that_a_worker_has_is_not_withdrawn(
    database: Database, commits: GroupCommit, new_run: NewRun
) -> None:
    await commits.write(acceptance.accept, accepting(new_run))
    with database.reader.begin() as connection:
        connection.execute(text("UPDATE runs SET status = 'RUNNING', attempt = 1"))
    assert await commits.write(acceptance.withdraw, Withdrawal(new_run.job.run_id, time.time())) is False


async def test_a_process_that_hangs_with_locks_does_not_stop_the_others(
    database: Database, commits: GroupCommit, new_run: NewRun
) -> None:
    """A lock that is not let go of is an unavailable ledger for those who need it, and soon."""
    await commits.write(acceptance.accept, accepting(new_run))

    def hurry(transaction: Transaction, items: Sequence[None]) -> Sequence[None]:
        shown = transaction.execute(text("SHOW lock_timeout")).scalar_one()
        assert shown == "5s"
        transaction.execute(text("SET LOCAL lock_timeout = '100ms'"))
        transaction.execute(text("UPDATE runs SET attempt = 1"))
        return items

    with database.reader.connect() as hanging, hanging.begin():
        hanging.execute(text("SELECT * FROM runs FOR UPDATE"))
        with pytest.raises(LedgerUnavailable):
            await commits.write(hurry, None)
    await commits.write(hurry, None)


async def test_what_is_not_looked_at_locks_nothing_before_the_commit(
    database: Database, commits: GroupCommit, new_run: NewRun, postgres_url: str
) -> None:
    """A process may be stopped at any moment, and no timer of PostgreSQL's runs in the middle of a pipeline."""
    await commits.write(acceptance.accept, accepting(new_run))
    elsewhere = Database(postgres_url)
    with elsewhere.writer.connect() as stopped, stopped.begin():
        transaction = Transaction(stopped)
        transaction.counts.add(Kind("anonymous", "hello", "default"), RunStatus.PENDING)
        transaction.settle()
        with database.reader.connect() as other, other.begin():
            other.execute(text("SET LOCAL lock_timeout = '100ms'"))
            other.execute(text("UPDATE run_counts SET total = total"))
    elsewhere.dispose()

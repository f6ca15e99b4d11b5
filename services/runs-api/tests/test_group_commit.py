"""Writes that wait together share a commit; one that fails fails alone."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from sqlalchemy import event, text

from fleet_runs_api.errors import LedgerUnavailable
from fleet_runs_api.ledger import writer
from fleet_runs_api.ledger.sql.database import Database
from fleet_runs_api.ledger.sql.transaction import Transaction
from fleet_runs_api.ledger.writer import GroupCommit
from fleet_testkit.waiting import wait_until


async def test_items_that_arrive_during_a_commit_are_written_together_by_the_next(database: Database) -> None:
    commits = GroupCommit(database.writer)
    commits.start()
    seen: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def double(_: Transaction, items: Sequence[int]) -> Sequence[int]:
        seen.append(len(items))
        begun.set()
        assert go_on.wait(10)
        return [2 * item for item in items]

    first = commits.write_soon(double, 1)
    await asyncio.to_thread(begun.wait, 10)
    rest = [commits.write_soon(double, i) for i in range(2, 12)]
    go_on.set()
    assert await first == 2
    assert await asyncio.gather(*rest) == [2 * i for i in range(2, 12)]
    assert seen == [1, 10]
    await commits.stop()


async def test_a_bad_item_does_not_fail_its_neighbours(database: Database) -> None:
    with database.writer.begin() as connection:
        connection.execute(text("CREATE TABLE things (name VARCHAR(5) PRIMARY KEY)"))
    commits = GroupCommit(database.writer)
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: Transaction, items: Sequence[None]) -> Sequence[None]:
        begun.set()
        assert go_on.wait(10)
        return items

    def insert(transaction: Transaction, names: Sequence[str]) -> Sequence[None]:
        for name in names:
            transaction.execute(text("INSERT INTO things VALUES (:name)"), {"name": name})
        return [None for _ in names]

    commits.start()
    held = commits.write_soon(hold, None)
    await asyncio.to_thread(begun.wait, 10)
    writes = [commits.write_soon(insert, name) for name in ("a", "b", "a", "c")]
    go_on.set()
    await held
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [isinstance(outcome, Exception) for outcome in outcomes] == [False, False, True, False]
    rows = database.read(lambda c: c.execute(text("SELECT name FROM things ORDER BY name")).all())
    assert [row.name for row in rows] == ["a", "b", "c"]
    await commits.stop()


async def test_an_unreachable_ledger_has_a_name() -> None:
    database = Database("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    commits = GroupCommit(database.writer)
    commits.start()
    with pytest.raises(LedgerUnavailable):
        await commits.write(lambda _, items: items, 1)
    with pytest.raises(LedgerUnavailable):
        await asyncio.to_thread(database.read, lambda connection: None)
    await commits.stop()


async def test_a_ledger_that_is_away_is_tried_once_for_all_that_wait_for_it() -> None:
    database = Database("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    tried: list[None] = []
    event.listen(database.writer, "do_connect", lambda *_: tried.append(None))
    commits = GroupCommit(database.writer)
    commits.start()
    writes = [commits.write_soon(lambda _, items: items, number) for number in range(50)]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {LedgerUnavailable}
    assert len(tried) < 10
    await commits.stop()


async def test_two_processes_that_wait_for_each_other_both_get_through(postgres_url: str) -> None:
    databases = [Database(postgres_url), Database(postgres_url)]
    with databases[0].writer.begin() as connection:
        connection.execute(text("CREATE TABLE pair (name TEXT PRIMARY KEY, n INTEGER)"))
        connection.execute(text("INSERT INTO pair VALUES ('a', 0), ('b', 0)"))
    both_hold_one = threading.Barrier(2)
    first_time: set[str] = set()

    def raise_both(transaction: Transaction, order: Sequence[str]) -> Sequence[None]:
        for number, name in enumerate(order[0]):
            transaction.execute(text("UPDATE pair SET n = n + 1 WHERE name = :name"), {"name": name})
            if number == 0 and order[0] not in first_time:
                first_time.add(order[0])
                both_hold_one.wait(10)
        return [None]

    commits = [GroupCommit(database.writer) for database in databases]
    for one in commits:
        one.start()
    await asyncio.gather(commits[0].write(raise_both, "ab"), commits[1].write(raise_both, "ba"))
    rows = databases[0].read(lambda c: c.execute(text("SELECT n FROM pair")).all())
    assert [row.n for row in rows] == [2, 2]
    for one, database in zip(commits, databases, strict=True):
        await one.stop()
        database.dispose()


async def test_a_row_that_somebody_else_has_locked_holds_up_nobody_who_does_not_want_it(postgres_url: str) -> None:
    database, other = Database(postgres_url), Database(postgres_url)
    with database.writer.begin() as connection:
        connection.execute(text("CREATE TABLE pair (name TEXT PRIMARY KEY, n INTEGER)"))
        connection.execute(text("INSERT INTO pair VALUES ('a', 0), ('b', 0), ('c', 0)"))

    def add(transaction: Transaction, names: Sequence[str]) -> Sequence[None]:
        transaction.execute(text("SET LOCAL lock_timeout TO '200ms'"))
        for name in names:
            transaction.execute(text("UPDATE pair SET n = n + 1 WHERE name = :name"), {"name": name})
        return [None] * len(names)

    commits = GroupCommit(database.writer)
    with other.writer.begin() as connection:
        connection.execute(text("UPDATE pair SET n = 7 WHERE name = 'b'"))
        commits.start()
        writes = [commits.write_soon(add, name) for name in "abc"]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), LedgerUnavailable, type(None)]
    rows = database.read(lambda c: c.execute(text("SELECT n FROM pair ORDER BY name")).all())
    assert [row.n for row in rows] == [1, 7, 1]
    await commits.stop()
    database.dispose()
    other.dispose()


async def test_a_transaction_that_was_idle_for_too_long_is_done_again(postgres_url: str) -> None:
    database = Database(postgres_url)
    commits = GroupCommit(database.writer)
    commits.start()
    tried: list[int] = []

    def sleep_once(transaction: Transaction, items: Sequence[None]) -> Sequence[None]:
        pid = transaction.execute(text("SELECT pg_backend_pid()")).scalar_one()
        tried.append(pid)
        if len(tried) == 1:
            transaction.execute(text("SET LOCAL idle_in_transaction_session_timeout TO '50ms'"))
            backend = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
            wait_until(
                lambda: database.read(lambda c: c.execute(backend, {"pid": pid}).scalar_one()) == 0,
                what="PostgreSQL ending the connection",
            )
        transaction.execute(text("SELECT 1"))
        return [None for _ in items]

    await commits.write(sleep_once, None)
    assert len(set(tried)) == 2
    await commits.stop()
    database.dispose()


async def test_a_connection_that_died_meanwhile_is_replaced(postgres_url: str) -> None:
    database = Database(postgres_url)
    commits = GroupCommit(database.writer)
    commits.start()

    def backend(transaction: Transaction, items: Sequence[None]) -> Sequence[int]:
        return [transaction.execute(text("SELECT pg_backend_pid()")).scalar_one() for _ in items]

    first = await commits.write(backend, None)
    database.read(lambda c: c.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": first}))
    assert await commits.write(backend, None) != first
    await commits.stop()
    database.dispose()


async def test_deferred_items_go_together_after_a_moment(database: Database) -> None:
    commits = GroupCommit(database.writer)
    commits.start()
    seen: list[int] = []

    def note(_: Transaction, items: Sequence[int]) -> Sequence[int]:
        seen.append(len(items))
        return items

    deferred = [commits.write_soon(note, i, deferrable=True) for i in range(5)]
    assert await asyncio.gather(*deferred) == [0, 1, 2, 3, 4]
    assert seen == [5]
    left_over = commits.write_soon(note, 9, deferrable=True)
    await commits.stop()
    assert await left_over == 9


async def test_many_deferred_items_wait_no_longer(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_DEFER_SECONDS", 3600.0)
    commits = GroupCommit(database.writer)
    commits.start()
    deferred = [commits.write_soon(lambda _, items: items, number, deferrable=True) for number in range(70)]
    assert await asyncio.gather(*deferred[:64]) == list(range(64))
    assert not any(future.done() for future in deferred[64:])
    await commits.stop()
    assert await asyncio.gather(*deferred[64:]) == list(range(64, 70))


async def test_before_the_ledger_is_open_a_write_is_refused(database: Database) -> None:
    with pytest.raises(LedgerUnavailable) as refused:
        await GroupCommit(database.writer).write(lambda _, items: list(items), 1)
    assert refused.value.meta["reason"] == "the ledger is not open yet"

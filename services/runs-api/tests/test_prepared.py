"""Statements for many rows at once: the same on both databases, and nothing half-written where they fail."""

import asyncio
from collections.abc import Sequence

import pytest
from sqlalchemy import BigInteger, Column, Float, Integer, MetaData, String, Table, Text, select, text
from sqlalchemy.exc import DBAPIError

from fleet_runs_api.errors import LedgerUnavailable
from fleet_runs_api.ledger.sql.database import Database
from fleet_runs_api.ledger.sql.prepared import Inserting, deleting, updating
from fleet_runs_api.ledger.sql.transaction import Transaction
from fleet_runs_api.ledger.writer import GroupCommit

from .conftest import writing

SERIAL = BigInteger().with_variant(Integer, "sqlite")
THINGS = Table(
    "things",
    MetaData(),
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("name", String(8), unique=True),
    Column("weight", Float(53)),
    Column("size", BigInteger),
    Column("note", Text),
)
TOTALS = Table("totals", MetaData(), Column("kind", Text, primary_key=True), Column("total", BigInteger))
COLUMNS = ("name", "weight", "size", "note")
INSERT = Inserting(THINGS, COLUMNS)
ADD = Inserting(TOTALS, ("kind", "total"), adding="total")
RESIZE = updating(THINGS, ("size", "note"), keys=("name",))
DELETE = deleting(THINGS, ("name", "size"))


@pytest.fixture
def things(database: Database) -> Database:
    with database.writer.begin() as connection:
        THINGS.create(connection)
        TOTALS.create(connection)
    return database


def all_things(database: Database) -> list[tuple[object, ...]]:
    query = select(*(THINGS.c[name] for name in COLUMNS)).order_by(THINGS.c.id)
    return [tuple(row) for row in database.read(lambda c: c.execute(query).all())]


ROWS: list[tuple[object, ...]] = [
    ("a", 1 / 3, 2**62, "plain"),
    ("b", 1_795_000_000.123456, -1, "quotes \" and ' and \\ and %s and :name"),
    ("c", 0.1 + 0.2, 0, "日本語\n\t🎈 \\u0000"),
    ("d", None, None, None),
    ("e", 5e-324, 1, ""),
]


def test_values_come_back_as_they_were_given_and_in_their_order(things: Database) -> None:
    many = [(f"m{number}", float(number), number, "x") for number in range(300)]
    with writing(things) as transaction:
        transaction.write(INSERT, ROWS)
        transaction.write(INSERT, many)
        transaction.write(INSERT, [])
    assert all_things(things) == [*ROWS, *many]


def test_rows_are_changed_and_deleted_by_their_keys_only(things: Database) -> None:
    with writing(things) as transaction:
        transaction.write(INSERT, ROWS)
        transaction.write(RESIZE, [(7, None, "a"), (8, "new", "c"), (9, "nobody", "z")])
        transaction.write(DELETE, [("b", -1), ("c", 0), ("e", 1)])
    assert all_things(things) == [("a", 1 / 3, 7, None), ("c", 0.1 + 0.2, 8, "new"), ROWS[3]]


def test_a_sum_is_made_or_added_to(things: Database) -> None:
    for _ in range(2):
        with writing(things) as transaction:
            transaction.write(ADD, [("x", 2), ("y", -3)])
            transaction.write(ADD, [("x", 1)])
    assert things.read(lambda c: c.execute(select(TOTALS).order_by("kind")).all()) == [("x", 6), ("y", -6)]


def test_what_was_sent_is_there_for_the_next_statement_of_the_transaction(things: Database) -> None:
    with writing(things) as transaction:
        transaction.write(INSERT, ROWS[:1])
        assert transaction.execute(select(THINGS.c.name)).scalars().all() == ["a"]
        transaction.write(INSERT, ROWS[1:2])
        assert transaction.execute(select(THINGS.c.name).order_by("id")).scalars().all() == ["a", "b"]
        transaction.write(INSERT, ROWS[2:])
    assert all_things(things) == ROWS


def twice(transaction: Transaction) -> None:
    transaction.write(INSERT, ROWS[:2])
    transaction.write(INSERT, ROWS[:1])
    transaction.write(INSERT, ROWS[2:])


def twice_and_look(transaction: Transaction) -> None:
    transaction.write(INSERT, ROWS[:1])
    transaction.write(INSERT, ROWS[:1])
    transaction.execute(select(THINGS.c.name))


def give_up(transaction: Transaction) -> None:
    transaction.write(INSERT, ROWS)
    raise LookupError


def test_a_failure_leaves_nothing_and_the_connection_goes_on(things: Database) -> None:
    with things.writer.connect() as connection:
        for write, failure in ((twice, DBAPIError), (twice_and_look, DBAPIError), (give_up, LookupError)):
            with pytest.raises(failure), Transaction.on(connection) as transaction:
                write(transaction)
        with Transaction.on(connection) as transaction:
            transaction.write(INSERT, ROWS[3:])
    assert all_things(things) == ROWS[3:]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_too_long_a_text_is_refused_and_not_cut(things: Database) -> None:
    with pytest.raises(DBAPIError, match="too long"), writing(things) as transaction:
        transaction.write(INSERT, [("123456789", 0.0, 0, "")])
    assert all_things(things) == []


def insert_one_by_one(transaction: Transaction, names: Sequence[str]) -> Sequence[None]:
    for name in names:
        transaction.write(INSERT, [(name, 0.0, 0, "")])
    return [None] * len(names)


async def test_a_bad_item_does_not_fail_those_that_were_sent_with_it(things: Database) -> None:
    commits = GroupCommit(things.writer)
    commits.start()
    writes = [commits.write_soon(insert_one_by_one, name) for name in ("a", "b", "a", "c")]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    await commits.stop()
    assert [isinstance(outcome, Exception) for outcome in outcomes] == [False, False, True, False]
    assert [row[0] for row in all_things(things)] == ["a", "b", "c"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_a_connection_that_died_is_replaced_for_what_is_sent_next(things: Database) -> None:
    commits = GroupCommit(things.writer)
    commits.start()

    def backend(transaction: Transaction, items: Sequence[None]) -> Sequence[int]:
        return [transaction.execute(text("SELECT pg_backend_pid()")).scalar_one() for _ in items]

    first = await commits.write(backend, None)
    things.read(lambda c: c.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": first}))
    await commits.write(insert_one_by_one, "a")
    assert await commits.write(backend, None) != first
    await commits.stop()
    assert [row[0] for row in all_things(things)] == ["a"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_a_connection_that_dies_in_the_middle_commits_all_or_nothing(things: Database) -> None:
    commits = GroupCommit(things.writer)
    commits.start()
    deaths: list[int] = []

    def insert_and_die(transaction: Transaction, names: Sequence[str]) -> Sequence[None]:
        insert_one_by_one(transaction, names)
        pid = transaction.execute(text("SELECT pg_backend_pid()")).scalar_one()
        deaths.append(pid)
        things.read(lambda c: c.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid}))
        return insert_one_by_one(transaction, [f"{name}2" for name in names])

    with pytest.raises(LedgerUnavailable):
        await commits.write(insert_and_die, "a")
    assert len(set(deaths)) == len(deaths) > 1, "each attempt had a connection of its own"
    await commits.write(insert_one_by_one, "b")
    await commits.stop()
    assert [row[0] for row in all_things(things)] == ["b"]

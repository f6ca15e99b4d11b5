"""Dead letters in the ledger on both databases: each once, in groups that always agree, found through an index."""

import random
import threading
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import text

from fleet_contracts.dead_letter import DeadLetter
from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_runs_api.accept import acceptance
from fleet_runs_api.dead_letters import reads as dead_letter_reads
from fleet_runs_api.dead_letters import writes as dead_letter_writes
from fleet_runs_api.dead_letters.letter import (
    INVALID_LETTER,
    Arrived,
    Letter,
    LetterState,
    Moved,
    error_type_of,
    read_letter,
)
from fleet_runs_api.dead_letters.reads import MOST_LOOKED_AT, LetterFilter
from fleet_runs_api.dead_letters.writes import Deletion, Requeued, Requeueing, TooOld, WhyNot
from fleet_runs_api.fold import recording
from fleet_runs_api.fold.recording import Observation
from fleet_runs_api.ledger import reads
from fleet_runs_api.ledger.documents import NewRun
from fleet_runs_api.ledger.sql.database import Database
from fleet_runs_api.ledger.sql.transaction import Transaction

from .conftest import accepting, writing
from .test_ledger import explain

ANYBODY = LetterFilter("anonymous")
ALL_STATES = (LetterState.OPEN, LetterState.REQUEUED)


def letter(sequence: int = 1, *, given_id: str | None = None, **said: Any) -> Letter:
    said = {"timestamp": 1.0, "reason": "execution_error", "error": "ValueError: no", "flow_name": "hello"} | said
    data = DeadLetter(**said).encode()
    at = float(sequence)
    tag = said.get("tag", "default")
    return read_letter(Arrived(data, f"pyoco.dlq.{tag}", sequence, at, given_id), tag=tag)


def write(database: Database, batch: Any, items: Sequence[Any]) -> Any:
    with writing(database) as transaction:
        return batch(transaction, items)


def enter(database: Database, *letters: Letter) -> list[int | None]:
    """Their ids; None for one that the ledger has, or does not take."""
    outcomes = write(database, dead_letter_writes.enter, letters)
    return [moved.id if isinstance(moved, Moved) else None for moved in outcomes]


def requeue(database: Database, *ids: int, tenant: str = "anonymous", **more: Any) -> Requeued:
    given: dict[str, Any] = {"by": "somebody", "now": 100.0, "due_at": 100.0} | more
    [done] = write(database, dead_letter_writes.requeue, [Requeueing(ids, tenant, **given)])
    assert isinstance(done, Requeued)
    return done


def remove(database: Database, *ids: int, tenant: str = "anonymous") -> list[int]:
    [gone] = write(database, dead_letter_writes.remove, [Deletion(ids, tenant)])
    return sorted(moved.id for moved in gone)


def failed_run(database: Database, *, tenant: str | None = None, flow: str = "hello") -> str:
    job = Job(run_id=str(uuid.uuid4()), flow_name=flow, tag="default", submitted_at=1.0, tenant_id=tenant)
    claimed = RunSnapshot.pending(job, now=1.0).claim(
        worker_id="w", worker_instance_id="i", ack_subject=None, now=2.0
    )
    failed = claimed.finish(RunStatus.FAILED, now=3.0, error="ValueError: no", reason="execution_error")
    write(database, acceptance.accept, [accepting(NewRun.of(job))])
    write(database, recording.record, [[Observation(failed, 7, failed.encode().decode())]])
    return job.run_id


def rows(database: Database, sql: str) -> list[Any]:
    return list(database.read(lambda connection: connection.execute(text(sql)).all()))


def groups(database: Database) -> dict[tuple[str, str], int]:
    return {(row.tenant_id, row.fingerprint): row.total for row in rows(database, "SELECT * FROM dead_letter_groups")}


def counted(database: Database) -> dict[tuple[str, str], int]:
    found = rows(database, "SELECT tenant_id, fingerprint FROM dead_letters WHERE state = 'open'")
    return dict(Counter((row.tenant_id, row.fingerprint) for row in found))


def ids_of(database: Database, wanted: LetterFilter, *, limit: int = 50, oldest_first: bool = False) -> list[int]:
    """A walk through all pages."""
    found: list[int] = []
    position: int | None = None
    while True:
        page = database.read(
            lambda c, position=position: dead_letter_reads.read_page(
                c, wanted, limit=limit, position=position, oldest_first=oldest_first
            )
        )
        found += [row.id for row in page.rows]
        position = page.next_position
        if position is None:
            return found


def test_a_letter_enters_once_however_often_it_is_delivered(database: Database) -> None:
    one = letter(5)
    assert enter(database, one, one) == [1, None]
    assert enter(database, one) == [None]
    # The same letter, published once more after JetStream had forgotten the first.
    again = letter(6, given_id="5:1:execution_error", run_id="r1")
    assert enter(database, again, letter(9, given_id="5:1:execution_error", run_id="r1"))[1] is None
    assert enter(database, letter(9, given_id="5:1:execution_error", run_id="r2")) != [None]
    assert sum(groups(database).values()) == len(rows(database, "SELECT * FROM dead_letters")) == 3


def test_after_a_wipe_letters_without_a_run_are_distinguished_by_place_and_moment(database: Database) -> None:
    said = DeadLetter(timestamp=1.0, reason="invalid_job", error="Job: no JSON").encode()
    before = Arrived(said, "pyoco.dlq.default", 1, 1000.5, "1:0:invalid_job")
    after = Arrived(said, "pyoco.dlq.default", 1, 2000.5, "1:0:invalid_job")
    ids = enter(database, *(read_letter(arrived, tag="default") for arrived in (before, after, after)))
    assert [number is not None for number in ids] == [True, True, False]


def test_a_letter_belongs_to_the_tenant_of_its_run(database: Database) -> None:
    run_id = failed_run(database, tenant="acme", flow="theirs")
    enter(
        database,
        letter(1, run_id=run_id, flow_name=None, tenant_id="somebody-else"),
        letter(2, run_id="unknown", tenant_id="acme"),
        letter(3),
    )
    found = rows(database, "SELECT tenant_id, flow_name, tag FROM dead_letters ORDER BY at")
    assert [tuple(row) for row in found] == [
        ("acme", "theirs", "default"),
        ("anonymous", "hello", "default"),
        ("anonymous", "hello", "default"),
    ]


def test_a_letter_that_its_run_does_not_bear_out_is_nobodys(database: Database) -> None:
    failed, waiting = failed_run(database, tenant="acme"), failed_run(database, tenant="acme")
    requeue(database, *(number or 0 for number in enter(database, letter(1, run_id=waiting))), tenant="acme")
    before = rows(database, "SELECT * FROM dead_letters")
    forged = [
        # The run waits; it was in another queue; it failed in another attempt.
        letter(2, run_id=waiting, tenant_id="acme"),
        letter(3, run_id=failed, tag="of-another-worker"),
        letter(4, run_id=failed, attempt=7),
    ]
    assert enter(database, *forged) == [None] * 3
    assert rows(database, "SELECT * FROM dead_letters") == before
    assert groups(database) == counted(database)
    assert enter(database, letter(5, run_id=failed, attempt=1)) != [None]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no json",
        b"\xff\xfe",
        b"[]",
        b'{"reason": "x"}',
        b'{"timestamp": 1, "reason": {"a": 1}}',
        b'{"timestamp": NaN, "reason": "x\\u0000y", "error": "a\\u0000", "run_id": "r\\u0000"}',
        b'{"timestamp": 1e308, "reason": "", "attempt": 99999999999999999999, "num_delivered": -5}',
        b'{"timestamp": 1, "reason": "%b", "error": "%b", "tenant_id": "%b", "flow_name": "%b", "tag": "%b",'
        b' "worker_id": "%b", "subject": "%b", "run_id": "%b"}' % ((b"x" * 5000,) * 8),
    ],
)
def test_whatever_a_peer_sends_the_ledger_can_hold_it(database: Database, data: bytes) -> None:
    arrived = Arrived(data, "pyoco.dlq.gpu", 7, 1234.5, "x" * 4000)
    assert enter(database, read_letter(arrived, tag="gpu")) == [1]
    [row] = rows(database, "SELECT * FROM dead_letters")
    assert row.at == 1234.5
    assert row.tag in ("gpu", "x" * 64)
    if not data.startswith(b'{"timestamp"') or b"{" in data[1:]:
        assert (row.reason, row.error_type) == (INVALID_LETTER, "DeadLetter")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("ValueError: no", "ValueError"),
        ("TimeoutError", "TimeoutError"),
        ("requests.exceptions.ConnectTimeout: https://x: no", "requests.exceptions.ConnectTimeout"),
        ("no flow is called x: sorry", "flow_not_found"),
        ("lower: case", "flow_not_found"),
        ("", "flow_not_found"),
        (None, "flow_not_found"),
    ],
)
def test_an_error_is_of_the_type_that_it_begins_with(error: str | None, kind: str) -> None:
    assert error_type_of(error, "flow_not_found") == kind


def test_letters_of_one_kind_are_one_group_with_the_newest_error(database: Database) -> None:
    enter(database, letter(3, error="ValueError: third"), letter(2, error="ValueError: second"))
    enter(database, letter(1, error="ValueError: first"), letter(9, error="KeyError: 'x'"))
    newest = database.read(dead_letter_reads.newest_groups("anonymous", limit=9).all)
    assert [(g.error_type, g.error, g.total, g.first_at, g.last_at) for g in newest] == [
        ("KeyError", "KeyError: 'x'", 1, 9.0, 9.0),
        ("ValueError", "ValueError: third", 3, 1.0, 3.0),
    ]
    assert database.read(dead_letter_reads.newest_groups("acme", limit=9).all) == []
    assert database.read(dead_letter_reads.open_letters("anonymous").all) == [4]
    assert database.read(dead_letter_reads.open_letters("acme").all) == [0]
    assert database.read(reads.open_letters_of_all(most=100).all) == [4]


def test_requeueing_makes_the_run_wait_again_and_closes_all_its_letters(database: Database) -> None:
    run_id = failed_run(database)
    first, second, other = enter(database, letter(1, run_id=run_id), letter(2, run_id=run_id), letter(3))
    assert first
    assert second
    done = requeue(database, first, due_at=160.0)
    [run] = done.runs
    assert (run.run_id, run.status, run.attempt, run.reopened) == (run_id, RunStatus.PENDING, 1, 1)
    assert sorted(moved.id for moved in done.letters) == [first, second]
    assert done.last_due_at == 160.0
    [row] = rows(database, "SELECT status, dispatch FROM runs")
    assert tuple(row) == ("PENDING", 2)
    [due] = rows(database, "SELECT run_id, dispatch, due_at FROM outbox")
    assert tuple(due) == (run_id, 2, 160.0)
    [decision] = rows(database, "SELECT kind, reason FROM decisions WHERE kind = 'requeue'")
    assert decision.reason.startswith("somebody asked for another attempt")
    closed = rows(database, "SELECT id, requeued_at, requeued_by FROM dead_letters WHERE state = 'requeued'")
    assert {tuple(row) for row in closed} == {(first, 100.0, "somebody"), (second, 100.0, "somebody")}
    assert groups(database) == counted(database)
    assert ids_of(database, ANYBODY) == [other]
    again = requeue(database, second)
    assert [(no.why, no.run_status) for no in again.refused] == [(WhyNot.REQUEUED_ALREADY, RunStatus.PENDING)]


def test_a_letter_is_not_requeued_without_a_failed_run_of_its_own_tenant(database: Database) -> None:
    theirs, waiting = failed_run(database, tenant="acme"), failed_run(database)
    ids = enter(
        database,
        letter(1),
        letter(2, run_id="unknown"),
        letter(3, run_id=theirs),
        letter(4, run_id=waiting),
        letter(5, run_id=waiting, error="KeyError: 'x'"),
    )
    no_run, unknown, foreign, first, second = (number or 0 for number in ids)
    requeue(database, first)
    done = requeue(database, no_run, unknown, foreign, second, 999)
    assert (done.runs, done.letters, done.last_due_at) == ([], [], None)
    assert {no.letter_id: (no.why, no.run_status) for no in done.refused} == {
        no_run: (WhyNot.NO_RUN, None),
        unknown: (WhyNot.RUN_GONE, None),
        foreign: (WhyNot.NOT_FOUND, None),
        second: (WhyNot.REQUEUED_ALREADY, RunStatus.PENDING),
        999: (WhyNot.NOT_FOUND, None),
    }
    assert rows(database, "SELECT status FROM runs WHERE tenant_id = 'acme'")[0].status == "FAILED"
    assert groups(database) == counted(database)


def test_many_runs_are_due_one_after_the_other(database: Database) -> None:
    run_ids = [failed_run(database) for _ in range(5)]
    ids = [number or 0 for number in enter(database, *(letter(i, run_id=r) for i, r in enumerate(run_ids, 1)))]
    done = requeue(database, *ids, due_at=50.0, spacing_seconds=0.25)
    assert done.last_due_at == 51.0
    due = {row.run_id: row.due_at for row in rows(database, "SELECT * FROM outbox")}
    assert [due[run_id] for run_id in run_ids] == [50.0, 50.25, 50.5, 50.75, 51.0]


def test_a_deleted_letter_is_out_of_sight_and_does_not_come_back(database: Database) -> None:
    run_id = failed_run(database)
    one, two = letter(1, run_id=run_id), letter(2)
    first, second = (number or 0 for number in enter(database, one, two))
    assert remove(database, first, second, tenant="acme") == []
    assert remove(database, first, 999) == [first]
    assert remove(database, first) == []
    assert enter(database, one) == [None]
    assert ids_of(database, LetterFilter("anonymous", states=ALL_STATES)) == [second]
    assert database.read(dead_letter_reads.letter_with_run(first, tenant_id="anonymous").all) == []
    assert requeue(database, first).refused[0].why is WhyNot.NOT_FOUND
    assert groups(database) == counted(database)


def test_a_requeued_letter_can_be_deleted_and_its_group_is_not_touched_twice(database: Database) -> None:
    ids = [number or 0 for number in enter(database, letter(1, run_id=failed_run(database)), letter(2))]
    requeue(database, ids[0])
    assert remove(database, *ids) == ids
    assert groups(database) == counted(database) == {}


def test_old_letters_are_forgotten_a_few_at_a_time(database: Database) -> None:
    ids = [number or 0 for number in enter(database, *(letter(i) for i in range(1, 11)))]
    remove(database, *ids[:4])

    def forget(**more: Any) -> int:
        [count] = write(database, dead_letter_writes.forget, [TooOld(**more)])
        return int(count)

    assert forget(closed_before=3.0, open_before=None, limit=500) == 2
    assert forget(closed_before=100.0, open_before=8.0, limit=4) == 4
    assert forget(closed_before=100.0, open_before=8.0, limit=4) == 1
    assert forget(closed_before=100.0, open_before=8.0, limit=4) == 0
    assert ids_of(database, ANYBODY) == ids[:6:-1]
    assert groups(database) == counted(database)


def test_groups_always_agree_with_the_letters(database: Database) -> None:
    chance = random.Random(7)
    run_ids = [failed_run(database, tenant=tenant) for tenant in (None, "acme") for _ in range(10)]
    for step in range(60):
        some = chance.sample(range(1, 120), 6)
        tenant = chance.choice(["anonymous", "acme"])
        match chance.randrange(5):
            case 0 | 1:
                kinds = ["ValueError: a", "KeyError: b", None]
                news = [
                    letter(step * 100 + i, run_id=chance.choice(run_ids), error=chance.choice(kinds))
                    for i in range(5)
                ]
                enter(database, *news)
            case 2:
                requeue(database, *some, tenant=tenant)
            case 3:
                remove(database, *some, tenant=tenant)
            case _:
                before = step * 20.0
                write(database, dead_letter_writes.forget, [TooOld(before, before, chance.randrange(1, 9))])
        assert groups(database) == counted(database)


def test_letters_of_a_transaction_that_was_rolled_back_are_in_no_group(database: Database) -> None:
    with database.writer.connect() as connection:
        dead_letter_writes.enter(Transaction(connection), [letter(1)])
        connection.rollback()
    enter(database, letter(2))
    assert list(groups(database).values()) == [1]


def test_two_processes_never_wait_for_each_other_in_a_circle(database: Database) -> None:
    other = Database(database.url)
    kinds = [f"Error{number}: x" for number in range(20)]
    failures: list[BaseException] = []

    def work(own: Database, offset: int, order: list[str]) -> None:
        try:
            for turn in range(15):
                base = offset + turn * 100
                enter(own, *(letter(base + i, error=error) for i, error in enumerate(order)))
        except BaseException as error:  # noqa: BLE001 - asserted by the test
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(database, 0, kinds)),
        threading.Thread(target=work, args=(other, 10_000, kinds[::-1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    other.dispose()
    assert failures == []
    assert set(groups(database).values()) == {30}


def test_filters_find_letters_in_both_orders(database: Database) -> None:
    run_id = failed_run(database)
    ids = enter(
        database,
        letter(1, tag="gpu"),
        letter(2, reason="flow_not_found", error="nothing"),
        letter(3, flow_name="other"),
        letter(4, run_id=run_id),
    )
    gpu, missing, other, of_run = (number or 0 for number in ids)
    kind = rows(database, f"SELECT fingerprint FROM dead_letters WHERE id = {of_run}")[0].fingerprint

    def found(**wanted: Any) -> list[int]:
        newest = ids_of(database, LetterFilter("anonymous", **wanted), limit=2)
        assert ids_of(database, LetterFilter("anonymous", **wanted), limit=1, oldest_first=True) == newest[::-1]
        return newest

    assert found() == [of_run, other, missing, gpu]
    assert found(tag="gpu") == [gpu]
    assert found(reason="flow_not_found") == [missing]
    assert found(flow_name="other") == [other]
    assert found(run_id=run_id) == [of_run]
    assert found(fingerprint=kind) == [of_run, gpu]
    assert found(fingerprint=kind, tag="gpu") == [gpu]
    assert found(since=2.0, until=4.0) == [other, missing]
    requeue(database, of_run)
    assert found() == [other, missing, gpu]
    assert found(run_id=run_id) == []
    assert found(states=(LetterState.REQUEUED,)) == [of_run]
    assert found(states=ALL_STATES) == [of_run, other, missing, gpu]
    assert ids_of(database, LetterFilter("acme", states=ALL_STATES)) == []


FILL = """
INSERT INTO dead_letters (message_id, tenant_id, run_id, flow_name, tag, reason, error_type, fingerprint, at, state)
{numbers} SELECT 'm' || i, CASE WHEN i % 1000 = 0 THEN 'acme' ELSE 'anonymous' END, 'run-' || i, 'flow-' || (i % 7),
'default', CASE WHEN i = 5 THEN 'rare' ELSE 'execution_error' END, 'E', 'f' || (i % 50), i,
CASE WHEN i % 3 = 0 THEN 'requeued' ELSE 'open' END FROM n
"""


def fill(database: Database, count: int) -> None:
    numbers = (
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        if database.is_sqlite
        else f"WITH n(i) AS (SELECT generate_series(1, {count}))"
    )
    with database.writer.begin() as connection:
        connection.execute(text(FILL.format(numbers=numbers)))
        if not database.is_sqlite:
            connection.execute(text("ANALYZE"))


def test_a_page_looks_at_so_many_letters_and_no_more(database: Database) -> None:
    fill(database, 20_000)
    wanted = LetterFilter("anonymous", reason="rare", states=ALL_STATES)
    page = database.read(lambda c: dead_letter_reads.read_page(c, wanted, limit=50))
    assert page.rows == []
    assert page.next_position is not None
    assert 20_000 - MOST_LOOKED_AT - 10 <= page.next_position <= 20_000 - MOST_LOOKED_AT + 10
    assert [row.run_id for row in rows(database, "SELECT run_id FROM dead_letters WHERE reason = 'rare'")] == [
        "run-5"
    ]
    assert len(ids_of(database, wanted)) == 1
    assert len(ids_of(database, LetterFilter("anonymous", states=ALL_STATES), limit=200)) == 19_980
    left = dead_letter_reads.count_left(ANYBODY, position=100, most=1000)
    assert database.read(left.all) == [1000]
    assert database.read(reads.open_letters_of_all(most=5000).all) == [5000]


def test_with_100000_letters_every_page_is_read_through_an_index(database: Database) -> None:
    fill(database, 100_000)
    wanted = {
        "open": ANYBODY,
        "of a small tenant": LetterFilter("acme"),
        "all": LetterFilter("anonymous", states=ALL_STATES),
        "by reason": LetterFilter("anonymous", reason="rare"),
        "by kind": LetterFilter("anonymous", fingerprint="f7"),
        "by run": LetterFilter("anonymous", run_id="run-77"),
        "by time": LetterFilter("anonymous", since=5.0, until=6.0),
    }
    with database.reader.connect() as connection:
        for name, letters in wanted.items():
            for oldest_first in (False, True):
                for position in (None, 50_000):
                    query = dead_letter_reads.page(letters, limit=50, position=position, oldest_first=oldest_first)
                    plan = explain(connection, query)
                    assert "ix_dead_letters" in plan or "dead_letters_pkey" in plan, f"{name}: {plan}"
                    assert "SCAN dead_letters" not in plan, f"{name}: {plan}"
                    assert "Seq Scan" not in plan, f"{name}: {plan}"
        plan = explain(connection, dead_letter_reads.newest_groups("anonymous", limit=50))
        assert "ix_dead_letter_groups_newest" in plan or not database.is_sqlite

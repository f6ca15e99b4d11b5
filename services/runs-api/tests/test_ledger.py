"""The ledger on both databases: what is accepted, counted, taken back, folded in and queued again."""

import re
import time
import uuid
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlmodel import SQLModel

from fleet_contracts.job import Job
from fleet_contracts.retry import RetryPolicy
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_runs_api.accept import acceptance
from fleet_runs_api.accept.acceptance import Acceptance, Withdrawal
from fleet_runs_api.fold import recording
from fleet_runs_api.fold.recording import Observation
from fleet_runs_api.ledger import documents, migrations, outbox, reads
from fleet_runs_api.ledger.database import Database
from fleet_runs_api.ledger.documents import NewRun
from fleet_runs_api.ledger.outbox import PutOff, Sent, TakeDue
from fleet_runs_api.ledger.rows import Query
from fleet_runs_api.ledger.transaction import Transaction
from fleet_runs_api.read.lists import reads as list_reads
from fleet_runs_api.read.lists.reads import RunFilter
from fleet_runs_api.repair import lost_runs
from fleet_runs_api.repair.lost_runs import Redispatch
from fleet_testkit.filling import fill_ledger

from .conftest import writing


def new_run(flow: str = "hello", *, tenant: str | None = None, tag: str = "default") -> NewRun:
    job = Job(
        run_id=str(uuid.uuid4()), flow_name=flow, tag=tag, tags=[tag], submitted_at=time.time(), tenant_id=tenant
    )
    return NewRun.of(job)


def send_at(run: NewRun) -> float:
    """When the relay may send it."""
    return run.job.submitted_at + 10


def accept(database: Database, *runs: NewRun) -> None:
    with writing(database) as transaction:
        acceptance.accept(transaction, [Acceptance([run], send_at(run)) for run in runs])


def observe(database: Database, *seen: tuple[RunSnapshot, int]) -> list[bool]:
    groups = [[Observation(s, revision, s.encode().decode())] for s, revision in seen]
    with writing(database) as transaction:
        changed = recording.record(transaction, groups)
        return [len(news) == 1 for news in changed]


def take_due(database: Database, now: float) -> list[Any]:
    """What the relay would take at that moment; it is left due as it was."""
    with writing(database) as transaction:
        (ids,) = outbox.take_due(transaction, [TakeDue(now, until=now, limit=10)])
    return list(database.read(reads.outbox_rows(ids).all))


def totals(database: Database, tenant: str = "anonymous") -> dict[str, int]:
    rows = database.read(lambda c: c.execute(text("SELECT tenant_id, status, total FROM run_counts")).all())
    return {row.status: row.total for row in rows if row.tenant_id == tenant and row.total}


def counted(database: Database, tenant: str = "anonymous") -> dict[str, int]:
    rows = database.read(
        lambda c: c.execute(
            text("SELECT status, count(*) AS total FROM runs WHERE tenant_id = :t GROUP BY status"), {"t": tenant}
        ).all()
    )
    return {row.status: row.total for row in rows}


def running(run: NewRun) -> RunSnapshot:
    return RunSnapshot.pending(run.job, now=1.0).claim(
        worker_id="w", worker_instance_id="i", ack_subject=None, now=2.0
    )


def test_commits_are_on_disk_before_they_are_answered(database: Database) -> None:
    with database.writer.connect() as connection:
        if database.is_sqlite:
            assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
            assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
        else:
            assert connection.execute(text("SHOW synchronous_commit")).scalar() == "on"
            assert connection.execute(text("SHOW fsync")).scalar() == "on"


def test_the_migrations_make_exactly_the_tables_of_the_models(database: Database) -> None:
    with database.writer.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []


def test_whatever_a_flow_says_of_its_failure_can_be_kept(database: Database) -> None:
    """PostgreSQL stores no NUL, and columns have an end."""
    run = new_run()
    run = replace(run, job=run.job.model_copy(update={"retry": RetryPolicy(max_attempts=2)}))
    accept(database, run)
    said = "binary \0 output " * 1000
    held = running(run)
    tried = held.retry_later(now=3.0, not_before=3.0, error=said, reason=None)
    ended = tried.claim(worker_id="w\0" * 300, worker_instance_id="i", ack_subject=None, now=4.0).finish(
        RunStatus.FAILED, now=5.0, error=said, reason="r" * 100
    )
    assert observe(database, (held, 1)) == [True]
    assert observe(database, (tried, 2)) == [True]
    assert observe(database, (ended, 3)) == [True]
    (row,) = database.read(lambda c: c.execute(text("SELECT status, error, reason, worker_id FROM runs")).all())
    assert (row.status, row.error[:15], len(row.reason)) == ("FAILED", "binary \ufffd output", 64)
    assert "\0" not in row.worker_id
    attempts = database.read(lambda c: c.execute(text("SELECT error FROM attempts")).scalars().all())
    assert [error[:15] for error in attempts] == ["binary \ufffd output"]


def test_the_newest_migration_is_the_one_the_service_expects() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    assert ScriptDirectory.from_config(config).get_current_head() == migrations.HEAD


def test_migrating_twice_changes_nothing(database: Database) -> None:
    accept(database, new_run())
    database.migrate()
    assert totals(database) == {"PENDING": 1}


def test_an_accepted_run_is_numbered_counted_and_waits_in_the_outbox(database: Database) -> None:
    first, second = new_run("a"), new_run("b")
    accept(database, first)
    accept(database, second)
    rows = database.read(lambda c: c.execute(text("SELECT run_id FROM runs ORDER BY seq")).all())
    assert [row.run_id for row in rows] == [first.job.run_id, second.job.run_id]
    assert totals(database) == {"PENDING": 2}
    due = take_due(database, time.time() + 60)
    assert [row.run_id for row in due] == [first.job.run_id, second.job.run_id]
    assert take_due(database, time.time()) == []


def test_a_sent_run_leaves_the_outbox(database: Database) -> None:
    run = new_run()
    accept(database, run)
    with writing(database) as transaction:
        outbox.mark_sent(transaction, [Sent(run.job.run_id, 1, 42)])
    assert take_due(database, time.time() + 60) == []
    [row] = database.read(reads.run_with_documents(run.job.run_id).all)
    assert row.job_sequence == 42


def test_a_withdrawn_run_leaves_only_a_note_to_clean_up_after_it(database: Database) -> None:
    run = new_run()
    accept(database, run)
    with writing(database) as transaction:
        assert acceptance.withdraw(transaction, [Withdrawal(run.job.run_id, 5.0)]) == [True]
    assert totals(database) == {}
    assert database.read(reads.run_with_documents(run.job.run_id).all) == []
    [left] = take_due(database, 6.0)
    assert (left.kind, left.run_id) == (outbox.WITHDRAW, run.job.run_id)
    with writing(database) as transaction:
        outbox.clear_withdrawn(transaction, [run.job.run_id])
    assert take_due(database, 6.0) == []


def test_a_run_that_somebody_may_have_sent_is_not_withdrawn(database: Database) -> None:
    running_run, taken, left_to_the_relay, sent = runs = [new_run() for _ in range(4)]
    accept(database, *runs)
    observe(database, (running(running_run), 3))
    with writing(database) as transaction:
        transaction.execute(text(f"UPDATE outbox SET due_at = 1 WHERE run_id = '{taken.job.run_id}'"))
        outbox.take_due(transaction, [TakeDue(2.0, until=9.0, limit=10)])
        outbox.put_off(transaction, [PutOff(outbox.DISPATCH, left_to_the_relay.job.run_id, 1, due_at=3.0)])
        outbox.mark_sent(transaction, [Sent(sent.job.run_id, 1, 42)])
    with writing(database) as transaction:
        assert acceptance.withdraw(transaction, [Withdrawal(run.job.run_id, 5.0) for run in runs]) == [False] * 4
    assert totals(database) == {"RUNNING": 1, "PENDING": 3}


def test_in_whatever_order_a_run_is_either_withdrawn_or_sent(database: Database) -> None:
    """A relay takes it; the submit leaves it to the relay, or withdraws it, perhaps twice."""
    for order in sorted(set(permutations(["take", "leave", "withdraw", "withdraw"]))):
        run = new_run()
        run_id = run.job.run_id
        accept(database, run)
        may_be_sent, withdrawn = False, False
        for step in order:
            with writing(database) as transaction:
                if step == "take":
                    (ids,) = outbox.take_due(transaction, [TakeDue(send_at(run), until=send_at(run), limit=10)])
                    rows = transaction.all(reads.outbox_rows(ids))
                    assert {row.run_id for row in rows if row.kind == outbox.DISPATCH} <= {run_id}
                    may_be_sent |= any(row.kind == outbox.DISPATCH for row in rows)
                elif step == "leave":
                    outbox.put_off(transaction, [PutOff(outbox.DISPATCH, run_id, 1, due_at=send_at(run))])
                    may_be_sent |= not withdrawn
                else:
                    [withdrawn] = acceptance.withdraw(transaction, [Withdrawal(run_id, send_at(run))])
            assert withdrawn != may_be_sent or not (withdrawn or may_be_sent), order
        with writing(database) as transaction:
            outbox.clear_withdrawn(transaction, [run_id])
            outbox.mark_sent(transaction, [Sent(run_id, 1, 42)])
            found = transaction.all(reads.run_with_documents(run_id))
            assert bool(found) == may_be_sent, order
            assert not transaction.execute(text("SELECT * FROM outbox")).all()


def test_counts_of_a_transaction_that_was_rolled_back_are_forgotten(database: Database) -> None:
    run = new_run()
    with database.writer.connect() as connection, connection.begin() as rolled_back:
        acceptance.accept(Transaction(connection), [Acceptance([run], send_at(run))])
        rolled_back.rollback()
    accept(database, new_run())
    assert totals(database) == counted(database) == {"PENDING": 1}


def test_folding_is_idempotent_and_the_counters_always_agree_with_the_rows(database: Database) -> None:
    one, two = new_run(), new_run(tenant="acme")
    accept(database, one, two)
    done = running(one).finish(RunStatus.COMPLETED, now=9.0)
    assert observe(database, (running(one), 5), (done, 8), (running(one), 6)) == [True, True, False]
    assert observe(database, (running(one), 5), (done, 8)) == [False, False]
    assert observe(database, (running(two), 7)) == [True]
    assert observe(database, (running(new_run()), 9)) == [False]
    for tenant in ("anonymous", "acme"):
        assert totals(database, tenant) == counted(database, tenant)
    assert totals(database) == {"COMPLETED": 1}
    [row] = database.read(reads.run_with_documents(one.job.run_id).all)
    assert RunSnapshot.decode(row.snapshot.encode()) == done
    assert [
        tuple(r)
        for r in database.read(
            lambda c: c.execute(text("SELECT finished_at FROM runs WHERE status = 'COMPLETED'")).all()
        )
    ] == [(9.0,)]


def test_a_forgotten_run_is_queued_again_once_and_its_revisions_begin_anew(database: Database) -> None:
    run = new_run()
    accept(database, run)
    observe(database, (running(run), 50))
    again = Redispatch(run.job.run_id, expected_dispatch=1, forgotten=True, now=1.0, reason="job_lost")
    with writing(database) as transaction:
        assert lost_runs.redispatch(transaction, [again, again]) == [True, False]
    [due] = take_due(database, 2.0)
    assert (due.run_id, due.dispatch, due.run.known.attempt) == (run.job.run_id, 2, 1)
    second = running(run).model_copy(update={"attempt": 2})
    assert observe(database, (second, 3)) == [True]


def test_an_ended_run_is_never_queued_again(database: Database) -> None:
    run = new_run()
    accept(database, run)
    observe(database, (running(run).finish(RunStatus.FAILED, now=9.0), 5))
    with writing(database) as transaction:
        assert lost_runs.redispatch(transaction, [Redispatch(run.job.run_id, 1, True, 1.0, "job_lost")]) == [False]


PAGES = {
    "held": (reads.held_runs(limit=100), "ix_runs_held_changed"),
    "heard of longest ago": (reads.oldest_held_change(), "ix_runs_held_changed"),
    "queued": (reads.queued_runs("default", 5.0, limit=100), "ix_runs_queued"),
    "unchecked": (reads.unchecked_runs(5.0, limit=100), "ix_runs_unfinished"),
}


def test_with_100000_runs_every_page_is_read_through_an_index(database: Database) -> None:
    with database.writer.begin() as connection:
        fill_ledger(connection, 100_000)
    with database.reader.connect() as connection:
        for name, (query, index) in PAGES.items():
            plan = explain(connection, query)
            # PostgreSQL may also walk the newest rows backwards by the primary key: as few rows, another index.
            assert index in plan or "runs_pkey" in plan, f"{name}: {plan}"
            assert "SCAN runs" not in plan.replace("SCAN runs USING INDEX", ""), f"{name}: {plan}"
            assert "Seq Scan on runs" not in plan, f"{name}: {plan}"
            assert "TEMP B-TREE" not in plan, f"{name}: {plan}"
        for query in (reads.count_due(5.0, most=100), reads.due_longest(), reads.next_due()):
            plan = explain(connection, query)
            assert "ix_outbox_due" in plan or not database.is_sqlite, plan
            assert not re.search(r"SCAN outbox(?! USING)", plan), plan
        plan = explain(connection, reads.states_of([str(uuid.uuid4()) for _ in range(1000)], tenant_id="anonymous"))
        assert not re.search("SCAN runs|Seq Scan", plan), plan
        plan = explain(connection, list_reads.arrived(RunFilter("anonymous", labels=("x",)), after=99_000, size=1000))
        assert "ix_runs_tenant" in plan or "runs_pkey" in plan, plan
        plan = explain(connection, reads.open_letters_of_all(most=100))
        assert "ix_dead_letters_age" in plan or not database.is_sqlite, plan
        assert "dead_letter_groups" not in plan, plan
        counts = explain(connection, reads.totals_by_status())
        assert "runs " not in counts.replace("run_counts", ""), counts
    assert totals(database) == {"COMPLETED": 97_990, "FAILED": 2_000}


def explain(connection: Connection, query: Query[Any]) -> str:
    compiled = query.statement.compile(connection, compile_kwargs={"literal_binds": True})
    prefix = "EXPLAIN QUERY PLAN" if connection.dialect.name == "sqlite" else "EXPLAIN"
    return "\n".join(str(row[-1]) for row in connection.execute(text(f"{prefix} {compiled}".replace(":", "\\:"))))


def test_what_one_relay_has_taken_no_other_takes_until_it_is_due_again(database: Database) -> None:
    accept(database, *(new_run() for _ in range(5)))
    later = time.time() + 60
    with writing(database) as transaction:
        first, second = outbox.take_due(
            transaction, [TakeDue(later, until=later + 10, limit=3), TakeDue(later, until=later + 10, limit=3)]
        )
        assert (len(first), len(second)) == (3, 2)
        assert set(first).isdisjoint(second)
        assert outbox.take_due(transaction, [TakeDue(later + 5, until=later + 20, limit=9)]) == [[]]
        assert outbox.take_due(transaction, [TakeDue(later + 10, until=later + 20, limit=9)]) == [first + second]


def backlog(database: Database, now: float) -> tuple[int, float]:
    """How many dispatches are due and not sent, and since when the first of them is."""
    [count] = database.read(reads.count_due(now, most=10).all)
    [first] = database.read(reads.due_longest().all)
    assert first is not None
    return count, first


def test_what_was_taken_and_not_sent_is_due_as_long_as_it_was(database: Database) -> None:
    runs = [new_run() for _ in range(5)]
    accept(database, *runs)
    due_at = min(send_at(run) for run in runs)
    assert backlog(database, due_at - 1) == (0, due_at)
    later = due_at + 60
    assert backlog(database, later) == (5, due_at)
    for now in (later, later + 10, later + 20):
        with writing(database) as transaction:
            assert len(outbox.take_due(transaction, [TakeDue(now, until=now + 10, limit=3)])[0]) == 3
        assert backlog(database, now + 5) == (5, due_at)
    with writing(database) as transaction:
        outbox.mark_sent(transaction, [Sent(run.job.run_id, 1, 42) for run in runs[1:]])
    assert backlog(database, later + 25) == (1, send_at(runs[0]))


def test_what_a_process_that_is_gone_meant_to_send_is_due_from_now_on(database: Database) -> None:
    left, scheduled = new_run(), new_run()
    scheduled = replace(scheduled, job=scheduled.job.model_copy(update={"not_before": send_at(scheduled)}))
    accept(database, left, scheduled)
    now = send_at(left) - 5
    with writing(database) as transaction:
        assert outbox.make_due_now(transaction, [now]) == [None]
    assert backlog(database, now) == (1, now)
    assert [row.run_id for row in take_due(database, now)] == [left.job.run_id]
    with writing(database) as transaction:
        outbox.make_due_now(transaction, [now + 1])
    assert backlog(database, now + 1) == (1, now)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_no_write_by_key_reads_a_whole_outbox_that_postgresql_believes_to_be_empty(database: Database) -> None:
    """A burst of submits fills it faster than its rows are counted again."""
    fill = text(
        "INSERT INTO outbox (kind, run_id, dispatch, due_at) "
        "SELECT 'dispatch', :name || n, 1, 1e12 FROM generate_series(1, 30000) AS n"
    )
    with database.reader.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(fill, {"name": "sent-"})
        connection.execute(text("DELETE FROM outbox WHERE run_id <> 'sent-30000'"))
        connection.execute(text("VACUUM ANALYZE outbox"))
        connection.execute(fill, {"name": "unsent-"})
    runs = [new_run() for _ in range(1000)]
    with writing(database) as transaction:
        transaction.execute(text("SET LOCAL statement_timeout TO '1s'"))
        acceptance.accept(transaction, [Acceptance(runs, send_at(runs[0]))])
        [due] = outbox.take_due(transaction, [TakeDue(send_at(runs[0]), until=send_at(runs[0]), limit=1000)])
        outbox.mark_sent(transaction, [Sent(run.job.run_id, 1, 42) for run in runs])
        claimed = [
            run.snapshot.claim(worker_id="w", worker_instance_id="i", ack_subject=None, now=2.0) for run in runs
        ]
        recording.record(transaction, [[Observation(one, 1, one.encode().decode())] for one in claimed])
        left = transaction.execute(text("SELECT count(*) FROM outbox")).scalar_one()
    assert (len(due), left) == (1000, 30_001)


def test_rows_that_are_written_by_their_keys_are_found_through_an_index(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/runs.db")
    database.migrate()
    for statement in (recording._APPLY_CHANGE, outbox._NOTE_SENT, documents.KEEP_SNAPSHOT, outbox._DELETE_SENT):
        sql = statement.for_sqlite
        values = [None] * sql.count("?")
        plan = database.read(
            lambda c, sql=sql, values=values: c.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", tuple(values)).all()
        )
        steps = " / ".join(row.detail for row in plan)
        assert "SEARCH" in steps, steps
        assert "SCAN runs" not in steps, steps
        assert "SCAN run_documents" not in steps, steps
        assert "SCAN outbox" not in steps, steps
        assert "SCAN t" not in steps.split(" / "), steps
    database.dispose()

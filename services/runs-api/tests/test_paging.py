"""Which runs are on a page: the right ones of one tenant, through an index, and never more work than a bound."""

import time
import uuid
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, text

from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_runs_api.accept import acceptance
from fleet_runs_api.fold import recording
from fleet_runs_api.fold.recording import Observation
from fleet_runs_api.ledger.documents import NewRun
from fleet_runs_api.ledger.rows import Query
from fleet_runs_api.ledger.shared_secrets import agree
from fleet_runs_api.ledger.sql.database import Database
from fleet_runs_api.read.cursor import Difference, Walk
from fleet_runs_api.read.lists import paging
from fleet_runs_api.read.lists import reads as list_reads
from fleet_runs_api.read.lists.paging import Found
from fleet_runs_api.read.lists.reads import Candidate, RunFilter
from fleet_testkit.filling import fill_ledger

from .conftest import accepting, writing

MINE = RunFilter("anonymous")


def accept(
    database: Database, flow: str = "hello", *, tenant: str | None = None, run_id: str | None = None, **more: Any
) -> str:
    fields = {"tag": "default", "submitted_at": time.time()} | more
    job = Job(run_id=run_id or str(uuid.uuid4()), flow_name=flow, tenant_id=tenant, **fields)
    run = NewRun.of(job)
    with writing(database) as transaction:
        acceptance.accept(transaction, [accepting(run)])
    return job.run_id


def fail(database: Database, run_id: str, error: str) -> None:
    with writing(database) as transaction:
        job = transaction.execute(text("SELECT job FROM run_documents WHERE run_id = :r"), {"r": run_id}).scalar_one()
        pending = RunSnapshot.pending(Job.decode(job.encode()), now=1.0)
        claimed = pending.claim(worker_id="w", worker_instance_id="i", ack_subject=None, now=2.0)
        failed = claimed.finish(RunStatus.FAILED, now=3.0, error=error)
        recording.record(transaction, [[Observation(failed, 7, failed.encode().decode())]])


def found(database: Database, wanted: RunFilter, *, limit: int = 50) -> list[str]:
    """The ids on the first page, in its order."""

    def read(connection: Connection) -> list[str]:
        seqs = paging.newest(connection, wanted, None, limit=limit, thorough=True, total=None).seqs
        rows = {seq: row.run_id for seq, row in list_reads.summaries(wanted, seqs).all(connection) if row is not None}
        return [rows[seq] for seq in seqs]

    ids: list[str] = database.read(read)
    return ids


def test_filters_find_the_runs_of_one_tenant_only(database: Database) -> None:
    mine, other_flow = accept(database, "a"), accept(database, "b", workflow_yaml_sha256="ab12")
    other_tag, theirs = accept(database, "a", tag="gpu"), accept(database, "a", tenant="acme")
    fail(database, other_flow, "ValueError: no")
    assert found(database, MINE) == [other_tag, other_flow, mine]
    assert found(database, MINE, limit=2) == [other_tag, other_flow]
    assert found(database, replace(MINE, flows=("a",), tags=("default",))) == [mine]
    assert found(database, replace(MINE, tags=("gpu",))) == [other_tag]
    assert found(database, replace(MINE, statuses=(RunStatus.FAILED,))) == [other_flow]
    assert found(database, replace(MINE, statuses=(RunStatus.FAILED,), flows=("a",))) == []
    assert found(database, replace(MINE, workflow_yaml_sha256="ab12")) == [other_flow]
    assert found(database, RunFilter("acme")) == [theirs]
    assert found(database, RunFilter("nobody")) == []


def test_of_several_values_any_may_fit(database: Database) -> None:
    a, b, c = (accept(database, flow) for flow in "abc")
    fail(database, b, "no")
    assert found(database, replace(MINE, flows=("a", "c"))) == [c, a]
    assert found(database, replace(MINE, flows=("a", "b", "c"), statuses=(RunStatus.PENDING,))) == [c, a]
    assert found(database, replace(MINE, statuses=(RunStatus.PENDING, RunStatus.FAILED))) == [c, b, a]
    assert found(database, replace(MINE, flows=("b", "c"), statuses=(RunStatus.FAILED, RunStatus.RUNNING))) == [b]


def test_text_is_found_in_ids_flows_and_errors_and_means_itself(database: Database) -> None:
    first = accept(database, "Nightly_report", run_id="deadbeef-0000-4000-8000-000000000001")
    second = accept(database, "nightlyXreport", run_id="deadbeef-0000-4000-8000-000000000002")
    third = accept(database, "other", run_id="0badcafe-0000-4000-8000-000000000003")
    theirs = accept(database, "other", run_id="deadbeef-0000-4000-8000-000000000004", tenant="acme")
    fail(database, third, "ValueError: only 50% of DEADBEEF/x")

    def search(wanted: str) -> list[str]:
        return found(database, replace(MINE, text=wanted))

    assert search("NIGHTLY") == [second, first]
    assert search("y_r") == [first]
    assert search("50% of dead") == [third]
    assert search("5_% of") == []
    assert search("%") == [third]
    assert search("beef/X") == [third]
    # What looks like the beginning of an id is one, if there is such a run.
    assert search("deadbeef") == [second, first]
    assert search("DEADBEEF-0000-4000-8000-000000000001") == [first]
    assert search(theirs) == []
    assert search("deadbe") == [third, second, first]
    assert found(database, replace(MINE, text="deadbeef", flows=("nightlyXreport",))) == [second]
    assert found(database, replace(MINE, text="deadbeef", flows=("other",))) == [third]


def test_times_of_submission_are_exact_although_numbers_and_times_disagree(database: Database) -> None:
    times = [10.0, 30.0, 20.0, 40.0, 50.0, 35.0]
    ids = {at: accept(database, submitted_at=at) for at in times}

    def between(since: float | None, until: float | None) -> list[float]:
        runs = found(database, replace(MINE, since=since, until=until))
        return [at for run in runs for at, run_id in ids.items() if run_id == run]

    assert between(None, None) == [35.0, 50.0, 40.0, 20.0, 30.0, 10.0]
    assert between(20.0, 40.0) == [35.0, 40.0, 20.0, 30.0]
    assert between(20.5, None) == [35.0, 50.0, 40.0, 30.0]
    assert between(None, 34.0) == [20.0, 30.0, 10.0]
    assert between(60.0, None) == between(None, 9.0) == between(41.0, 49.0) == []


def test_a_run_that_changes_while_a_difference_is_read_does_not_drop_out_of_it(database: Database) -> None:
    run_id = accept(database)
    before = time.time() - 60
    start = database.read(lambda c: paging.difference(c, MINE, before, settled_until=before))
    fail(database, run_id, "a moment after its acceptance")
    read: Found = database.read(lambda c: paging.changes(c, MINE, start, limit=50))
    assert (len(read.seqs), read.following) == (1, None)


def test_a_secret_is_the_same_for_all_who_ask(database: Database) -> None:
    again = Database(database.url)
    with writing(database) as transaction:
        first, other = agree(transaction, ["one", "two"])
    with writing(again) as transaction:
        assert agree(transaction, ["one"]) == [first] != [other]
    again.dispose()


def newest(wanted: RunFilter, guide: list_reads.Guide, *, size: int = 51) -> Query[Candidate]:
    return list_reads.newest(wanted, guide, before=99_000, lowest=None, size=size)


_FAILED = replace(MINE, statuses=(RunStatus.FAILED,))
_DIFFERENCE = Difference(5.0, 98_000.0, 99_000.0, 500.0, 500)
PAGES: dict[str, tuple[Query[Any], str]] = {
    "newest": (newest(MINE, "tenant_id"), "ix_runs_tenant"),
    "of a small tenant": (newest(RunFilter("acme"), "tenant_id"), "ix_runs_tenant"),
    "by status": (newest(_FAILED, "status"), "ix_runs_tenant_status"),
    "by flow": (newest(replace(MINE, flows=("flow-3",)), "flow_name"), "ix_runs_tenant_flow"),
    "by flows": (newest(replace(MINE, flows=("flow-3", "flow-4")), "flow_name"), "ix_runs_tenant_flow"),
    "by flows and status": (newest(replace(_FAILED, flows=("flow-3", "no")), "flow_name"), "ix_runs_tenant_flow"),
    "by tag": (newest(replace(MINE, tags=("gpu",)), "tag"), "ix_runs_tenant_tag"),
    "by file": (newest(replace(MINE, workflow_yaml_sha256="sha-1"), "workflow_yaml_sha256"), "ix_runs_tenant_yaml"),
    "by text": (newest(replace(MINE, text="number 7"), "tenant_id", size=1000), "ix_runs_tenant"),
    "changes": (list_reads.changes(MINE, _DIFFERENCE, until=None, size=51), "ix_runs_tenant_changed"),
    "filtered changes": (
        list_reads.changes(_FAILED, _DIFFERENCE, until=_DIFFERENCE.shown_until, size=1000),
        "ix_runs_tenant_changed",
    ),
    "by labels": (newest(replace(MINE, labels=("a", "b")), "tenant_id", size=1000), "ix_runs_tenant"),
    "latest change": (list_reads.latest_change("anonymous"), "ix_runs_tenant_changed"),
    "since": (list_reads.lowest_seq("anonymous", 500.0), "ix_runs_tenant_submitted"),
    "until": (list_reads.highest_seq("anonymous", 99_000.0), "ix_runs_tenant_submitted"),
}


def explain(connection: Connection, query: Query[Any]) -> str:
    compiled = query.statement.compile(connection, compile_kwargs={"literal_binds": True})
    prefix = "EXPLAIN QUERY PLAN" if connection.dialect.name == "sqlite" else "EXPLAIN"
    return "\n".join(str(row[-1]) for row in connection.execute(text(f"{prefix} {compiled}".replace(":", "\\:"))))


def test_with_100000_runs_every_list_is_read_through_an_index_and_within_bounds(database: Database) -> None:
    with database.writer.begin() as connection:
        fill_ledger(connection, 100_000)
    with database.reader.connect() as connection:
        for name, (query, index) in PAGES.items():
            plan = explain(connection, query)
            # Of a tenant that has nearly all runs, PostgreSQL may also walk the primary key: as few rows.
            walks_key = "runs_pkey" in plan and name in ("newest", "by text", "by labels")
            assert f"{index} " in plan or walks_key, f"{name}: {plan}"
            assert "SCAN runs" not in plan, f"{name}: {plan}"
            assert "Seq Scan on runs" not in plan, f"{name}: {plan}"
            # What is sorted is what was read for this page.
            assert "Sort  (" not in plan, f"{name}: {plan}"
            assert "TEMP B-TREE" not in plan or name.startswith("by flows"), f"{name}: {plan}"
        by_id = explain(connection, list_reads.with_id_prefix(replace(MINE, text="deadbeef"), "deadbeef"))
        assert "sqlite_autoindex_runs_1" in by_id or "runs_run_id_key" in by_id, by_id
        plan = explain(connection, list_reads.whole_runs(_FAILED, list(range(200))))
        assert "INTEGER PRIMARY KEY" in plan or "using runs_pkey" in plan, plan
        for counted in (MINE, _FAILED, replace(_FAILED, flows=("flow-3",), tags=("gpu",))):
            assert "runs" not in explain(connection, list_reads.total(counted.tenant_id, counted.counted_parts))
    bounded_work(database)


def bounded_work(database: Database) -> None:
    """In the same 100,000 runs: what is rare is found through the smallest index, or page by page."""

    def page(wanted: RunFilter, start: Walk | None = None, *, thorough: bool = False) -> Found:
        page: Found = database.read(
            lambda c: paging.newest(c, wanted, start, limit=10, thorough=thorough, total=None)
        )
        return page

    # 2,000 failed runs, 100 of tag gpu, 14,284 of the flow: the tag leads to all of them at once.
    rare = replace(_FAILED, tags=("gpu",), flows=("flow-0",))
    assert page(rare) == Found(
        [98_000, 91_000, 84_000, 77_000, 70_000, 63_000, 56_000, 49_000, 42_000, 35_000], Walk(35_000)
    )
    assert page(rare, Walk(35_000)) == Found([28_000, 21_000, 14_000, 7_000])

    # No index leads to this text: each request looks at 5,000 runs and says where to go on.
    hidden = replace(MINE, text="number 50050")
    answers = [page(hidden)]
    while answers[-1].following:
        before = answers[-1].following
        assert isinstance(before, Walk)
        assert before.before_seq == 100_001 - 5_000 * len(answers)
        answers.append(page(hidden, before))
    assert [seq for answer in answers for seq in answer.seqs] == [50_050]
    assert len(answers) == 20
    assert page(hidden, thorough=True) == Found([], Walk(80_001))

    # The time of submission leads to its runs at once.
    assert page(replace(MINE, until=300.5, since=290.0, text="number")) == Found([300])
    assert page(replace(MINE, until=300.5)) == Found(list(range(300, 290, -1)), Walk(291))

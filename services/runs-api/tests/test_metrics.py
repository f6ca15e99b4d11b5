"""The metrics of runs-api on the inside: every step of a run, the queues, and what is away."""

import asyncio
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from fleet_contracts.job import Job
from fleet_contracts.names import WireNames
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus, WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_runs_api.main import build
from fleet_runs_api.metrics import RunsMetrics
from fleet_testkit.apps import running
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.scrapes import Scrape
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, runs_running, runs_settings

NO_FLOW = ("flow_not_found", "callable_not_allowed", "reference_not_allowed")


async def scrape(service: RunsUnderTest) -> Scrape:
    # As Prometheus asks: nobody in particular.
    answer = await service.client.get("/metrics", headers=dict.fromkeys(service.client.headers, ""))
    assert answer.status_code == 200
    return Scrape(answer.text)


async def until(service: RunsUnderTest, holds: Callable[[Scrape], bool], what: str) -> Scrape:
    async def look() -> Scrape | None:
        seen = await scrape(service)
        return seen if holds(seen) else None

    found = await eventually(look, within=20, what=what)
    assert found is not None
    return found


async def finish(service: RunsUnderTest, run_id: str, status: RunStatus = RunStatus.COMPLETED) -> None:
    await service.claim(run_id)
    tasks = {"tasks": {"greet": TaskStatus.SUCCEEDED}}
    await service.change(run_id, lambda s: s.finish(status, now=time.time()).model_copy(update=tasks))


async def refuse_jobs(service: RunsUnderTest) -> None:
    """From now on the queue is too small for any job."""
    info = await service.link.jetstream.stream_info("PYOCO_WORK")
    info.config.max_msg_size = 10
    await service.link.jetstream.update_stream(info.config)


async def test_every_step_of_a_run_is_measured(service: RunsUnderTest) -> None:
    await finish(service, await service.submit("hello"))
    await finish(service, await service.submit("other-flow"), RunStatus.FAILED)
    seen = await until(service, lambda s: s.value("pyoco_run_attempts_count") == 2, "both ends folded in")
    assert seen.value("pyoco_runs_submitted_total") == 2
    assert seen.value("pyoco_accept_duration_seconds_count") == 2
    assert seen.value("pyoco_relay_duration_seconds_count") == 2
    assert seen.value("pyoco_relay_failures_total") == 0
    assert (seen.value("pyoco_ledger_commit_duration_seconds_count") or 0) >= 2
    assert seen.value("pyoco_ledger_commit_writes_count") == seen.value("pyoco_ledger_commit_duration_seconds_count")
    assert seen.value("pyoco_runs_ended_total", flow="hello", status="COMPLETED") == 1
    assert seen.value("pyoco_runs_ended_total", flow="other-flow", status="FAILED") == 1
    for flow in ("hello", "other-flow"):
        assert seen.value("pyoco_run_duration_seconds_count", flow=flow) == 1
        assert seen.value("pyoco_run_wait_seconds_count", flow=flow) == 1
    assert (seen.value("pyoco_ingest_lag_seconds_count") or 0) >= 1
    assert (seen.value("pyoco_ingest_snapshot_bytes_sum") or 0) > 100
    assert seen.value("pyoco_http_requests_total", route="/runs", method="POST", code="200") == 2
    assert (seen.value("pyoco_nats_up"), seen.value("pyoco_ledger_up")) == (1, 1)
    assert seen.value("pyoco_runs_repairs_total") == 0


async def test_an_end_is_counted_once_however_often_it_is_reported(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    await finish(service, run_id)
    await until(service, lambda s: s.value("pyoco_runs_ended_total") == 1, "the end folded in")
    # The sweeper and the ingest look at the same snapshot; one that is written again is old news.
    await service.change(run_id, lambda s: s)
    await finish(service, await service.submit())
    seen = await until(service, lambda s: (s.value("pyoco_runs_ended_total") or 0) >= 2, "the second end folded in")
    assert seen.value("pyoco_runs_ended_total") == seen.value("pyoco_run_attempts_count") == 2


def test_names_of_flows_make_no_more_series_than_allowed() -> None:
    metrics = RunsMetrics(max_flows=5)
    for number in range(300):
        run = RunSnapshot(
            run_id=f"r{number}", flow_name=f"flow-{number}", status=RunStatus.COMPLETED, attempt=1, worker_id="w1",
            heartbeat_at=3.0, updated_at=3.0, submitted_at=1.0, start_time=2.0, end_time=3.0,
        )  # fmt: skip
        metrics.note_changes([run])
    seen = Scrape(generate_latest(metrics.registry).decode())
    expected = {*(f"flow-{number}" for number in range(5)), "other"}
    for name in ("pyoco_runs_ended_total", "pyoco_run_duration_seconds_count", "pyoco_run_wait_seconds_count"):
        assert seen.label_values(name, "flow") == expected
    assert seen.value("pyoco_runs_ended_total", flow="other") == 295


def scraped_after(*ended: RunSnapshot) -> Scrape:
    metrics = RunsMetrics()
    metrics.note_changes(ended)
    return Scrape(generate_latest(metrics.registry).decode())


def waiting(*, submitted_at: float = 1000.0, not_before: float | None = None) -> RunSnapshot:
    job = Job(run_id="r1", flow_name="hello", tag="default", submitted_at=submitted_at, not_before=not_before)
    return RunSnapshot.pending(job, now=submitted_at)


def begun(snapshot: RunSnapshot, *, now: float) -> RunSnapshot:
    return snapshot.claim(worker_id="w1", worker_instance_id="i1", ack_subject=None, now=now)


def test_the_time_until_a_scheduled_run_is_due_is_no_waiting() -> None:
    seen = scraped_after(begun(waiting(not_before=4600.0), now=4600.5).finish(RunStatus.COMPLETED, now=4602.0))
    assert seen.value("pyoco_run_wait_seconds_sum") == 0.5
    assert seen.value("pyoco_run_duration_seconds_sum") == 1.5
    at_once = scraped_after(begun(waiting(), now=1002.0).finish(RunStatus.COMPLETED, now=1003.0))
    assert at_once.value("pyoco_run_wait_seconds_sum") == 2.0


def test_a_run_that_ends_between_two_attempts_takes_none_of_that_time() -> None:
    tried = begun(waiting(), now=1002.0).retry_later(now=1003.0, not_before=9000.0, error="x", reason=None)
    seen = scraped_after(tried.request_cancel(by=None, now=5000.0).finish(RunStatus.CANCELLED, now=5000.0))
    assert seen.value("pyoco_runs_ended_total", status="CANCELLED") == 1
    assert not seen.value("pyoco_run_duration_seconds_count")
    assert seen.value("pyoco_run_wait_seconds_sum") == 2.0
    handed_back = begun(waiting(), now=1002.0).hand_back(now=1003.0, interrupted=True)
    late = handed_back.finish(RunStatus.FAILED, now=5000.0, reason="deadline_exceeded")
    assert not scraped_after(late).value("pyoco_run_duration_seconds_count")


def test_the_first_attempt_of_a_run_that_was_reopened_is_not_measured_from_its_submit() -> None:
    never_begun = waiting().finish(RunStatus.FAILED, now=2000.0, reason="deadline_exceeded")
    seen = scraped_after(begun(never_begun.reopen(now=9000.0), now=9001.0).finish(RunStatus.COMPLETED, now=9002.0))
    assert seen.value("pyoco_run_duration_seconds_sum") == 1.0
    assert not seen.value("pyoco_run_wait_seconds_count")


def test_names_of_flows_that_never_ran_use_up_no_names() -> None:
    metrics = RunsMetrics(max_flows=1)
    pending, failed = waiting(), RunStatus.FAILED
    held = begun(pending, now=1002.0)
    never_ran = [
        *(held.finish(failed, now=1003.0, reason=reason) for reason in NO_FLOW),
        held.request_cancel(by=None, now=1002.5).finish(RunStatus.CANCELLED, now=1003.0),
        pending.request_cancel(by=None, now=1002.0).finish(RunStatus.CANCELLED, now=1002.0),
        pending.finish(failed, now=1003.0, reason="deadline_exceeded"),
    ]
    for number, run in enumerate(never_ran):
        metrics.note_changes([run.model_copy(update={"flow_name": f"invented-{number}"})])
    metrics.note_changes([held.finish(failed, now=1003.0, reason="execution_error")])
    # A known flow that some worker does not have is still that flow.
    metrics.note_changes([never_ran[0]])
    seen = Scrape(generate_latest(metrics.registry).decode())
    assert seen.label_values("pyoco_runs_ended_total", "flow") == {"other", "hello"}
    assert seen.value("pyoco_runs_ended_total", flow="hello") == 2
    assert seen.value("pyoco_runs_ended_total", flow="other") == len(never_ran)


@pytest.mark.parametrize(
    "end",
    [
        lambda run: run.finish(RunStatus.COMPLETED, now=1003.0),
        lambda run: run.model_copy(update={"tasks": {"greet": TaskStatus.CANCELLED}}).finish(
            RunStatus.CANCELLED, now=1003.0
        ),
        lambda run: run.finish(RunStatus.FAILED, now=1003.0, reason="execution_error"),
    ],
)
def test_a_flow_that_ran_is_named_however_it_ended(end: Callable[[RunSnapshot], RunSnapshot]) -> None:
    seen = scraped_after(end(begun(waiting(), now=1002.0)))
    assert seen.label_values("pyoco_runs_ended_total", "flow") == {"hello"}


async def test_the_metrics_of_every_queue_show_what_waits_for_how_many_workers(service: RunsUnderTest) -> None:
    now = time.time()
    record = WorkerRecord(
        worker_id="w1", instance_id="i", state=WorkerState.IDLE, last_seen_at=now, last_heartbeat_at=now,
        tags=["served"], slots=3,
    )  # fmt: skip
    registry = Bucket(service.link, "pyoco_workers")
    await registry.put("w1", record.encode())
    for tag in ("served", "served", "nobodys"):
        await service.submit(tag=tag)
    await until(service, lambda s: "served" in s.label_values("pyoco_queue_workers", "tag"), "the worker seen")
    durable = WireNames().work_durable("served")

    async def is_made() -> bool:
        return durable in [queue.name for queue in await service.link.jetstream.consumers_info("PYOCO_WORK")]

    await eventually(is_made, what="the queue of the served tag")
    pulled = await service.link.jetstream.pull_subscribe_bind(durable, stream="PYOCO_WORK")
    [job] = await pulled.fetch(1, timeout=30)
    await registry.put("w1", record.model_copy(update={"current_run_ids": ["r1"]}).encode())
    seen = await until(
        service, lambda s: s.value("pyoco_queue_jobs", tag="served", state="taken") == 1, "a job in a worker's hands"
    )
    assert seen.value("pyoco_queue_jobs", tag="served", state="waiting") == 1
    assert seen.value("pyoco_queue_jobs", tag="nobodys", state="waiting") == 1
    assert (seen.value("pyoco_queue_workers", tag="served"), seen.value("pyoco_queue_workers", tag="nobodys")) == (
        1,
        0,
    )
    assert seen.value("pyoco_queue_free_slots", tag="served") == 2
    older = await until(
        service,
        lambda s: (
            (s.value("pyoco_queue_oldest_waiting_seconds", tag="nobodys") or 0)
            > (seen.value("pyoco_queue_oldest_waiting_seconds", tag="nobodys") or 0)
        ),
        "the job growing older",
    )
    assert (older.value("pyoco_queue_oldest_waiting_seconds", tag="nobodys") or 0) < 60
    # The worker goes away and its job is handed back: JetStream still counts it among what is out.
    await job.nak(delay=600)
    await registry.put("w1", record.model_copy(update={"state": WorkerState.STOPPED_GRACEFUL}).encode())
    left = await until(
        service, lambda s: s.value("pyoco_queue_jobs", tag="served", state="waiting") == 2, "the job waiting again"
    )
    assert left.value("pyoco_queue_jobs", tag="served", state="taken") == 0
    assert left.value("pyoco_queue_workers", tag="served") == 0
    assert (left.value("pyoco_queue_oldest_waiting_seconds", tag="served") or 0) > 0


async def test_a_worker_of_the_seed_spec_is_busy_with_the_one_run_that_it_reports(service: RunsUnderTest) -> None:
    now = time.time()
    record = {
        "worker_id": "peer", "instance_id": "i", "state": "RUNNING", "hidden": False, "tags": ["peers"],
        "last_seen_at": now, "last_heartbeat_at": now,
    }  # fmt: skip
    workers = Bucket(service.link, "pyoco_workers")
    await workers.put("peer", json.dumps(record).encode())
    run_id = await service.submit(tag="peers")
    durable = WireNames().work_durable("peers")

    async def is_made() -> bool:
        return durable in [queue.name for queue in await service.link.jetstream.consumers_info("PYOCO_WORK")]

    await eventually(is_made, what="the queue of the peer's tag")
    pulled = await service.link.jetstream.pull_subscribe_bind(durable, stream="PYOCO_WORK")
    await pulled.fetch(1, timeout=30)
    await workers.put("peer", json.dumps(record | {"current_run_id": run_id}).encode())
    seen = await until(
        service, lambda s: s.value("pyoco_queue_jobs", tag="peers", state="taken") == 1, "the job in the peer's hands"
    )
    assert seen.value("pyoco_queue_jobs", tag="peers", state="waiting") == 0
    assert seen.value("pyoco_queue_oldest_waiting_seconds", tag="peers") == 0
    assert seen.value("pyoco_queue_free_slots", tag="peers") == 0
    second = (await service.client.get(f"/runs/{await service.submit(tag='peers')}")).json()
    assert second["waiting_detail"] == "all workers of tag peers are busy; it is in their queue"


async def test_invented_tags_do_not_push_out_those_that_are_served(service: RunsUnderTest) -> None:
    runs = [{"flow_name": "hello", "tag": f"invented-{number}"} for number in range(150)]
    runs += [{"flow_name": "hello", "tag": "zz-busy"}] * 3
    assert (await service.client.post("/runs/batch", json={"runs": runs})).status_code == 200
    await until(service, lambda s: s.value("pyoco_queue_jobs", tag="other") == 51, "all jobs in the stream")
    now = time.time()
    record = WorkerRecord(
        worker_id="w1", instance_id="i", state=WorkerState.IDLE, last_seen_at=now, last_heartbeat_at=now,
        tags=["zz-served"], slots=3,
    )  # fmt: skip
    await Bucket(service.link, "pyoco_workers").put("w1", record.encode())
    seen = await until(service, lambda s: s.value("pyoco_queue_workers", tag="zz-served") == 1, "the served tag")
    assert len(seen.label_values("pyoco_queue_workers", "tag")) == 101
    assert seen.value("pyoco_queue_jobs", tag="zz-busy", state="waiting") == 3
    assert seen.value("pyoco_queue_jobs", tag="other", state="waiting") == 52
    assert seen.value("pyoco_queue_workers", tag="other") == 0


async def test_a_scrape_looks_through_the_workers_once_and_not_for_every_tag(service: RunsUnderTest) -> None:
    walks = 0

    class Watched(dict[str, WorkerRecord]):
        def values(self) -> Any:
            nonlocal walks
            walks += 1
            return super().values()

    gauges = service.app.state.service.gauges
    gauges._workers._records = Watched()
    now = time.time()
    for number in range(60):
        record = WorkerRecord(
            worker_id=f"w{number}", instance_id="i", state=WorkerState.IDLE, last_seen_at=now, last_heartbeat_at=now,
            tags=["all", f"own-{number}", f"second-{number}"], slots=2, draining=number < 10,
            current_run_ids=["r1"] if number < 20 else [],
        )  # fmt: skip
        await Bucket(service.link, "pyoco_workers").put(record.worker_id, record.encode())
    seen = await until(service, lambda s: s.value("pyoco_workers_alive_total") == 60, "all workers seen")
    assert (seen.value("pyoco_queue_workers", tag="all"), seen.value("pyoco_queue_free_slots", tag="all")) == (50, 90)
    assert len(seen.label_values("pyoco_queue_workers", "tag")) == 101
    walks = 0
    gauges._asked_at = float("-inf")
    await scrape(service)
    # Once for those that are alive, once for what they could take.
    assert walks == 2


def test_the_gateway_shows_only_what_every_replica_reports_alike() -> None:
    families = Scrape(generate_latest(RunsMetrics().of_fleet()).decode()).families
    assert {family.type for family in families.values()} == {"gauge"}


async def test_a_held_run_without_heartbeats_shows_its_age(nats_server: NatsServer, tmp_path: Path) -> None:
    patient = runs_settings(nats_server, tmp_path, run_lost_after_sec=600)
    async with runs_running(patient) as service:
        assert (await scrape(service)).value("pyoco_runs_oldest_heartbeat_seconds") == 0
        await service.claim(await service.submit())
        await until(
            service, lambda s: (s.value("pyoco_runs_oldest_heartbeat_seconds") or 0) > 2, "the silence being seen"
        )


async def test_what_jetstream_does_not_take_is_counted_however_often_it_was_tried(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    patient = runs_settings(nats_server, tmp_path, nats_request_timeout_sec=10)
    async with runs_running(patient) as service:
        await refuse_jobs(service)
        batch = {"runs": [{"flow_name": "hello"}] * 7}
        assert (await service.client.post("/runs/batch", json=batch)).status_code == 200
        await eventually(
            lambda: service.rows(f"SELECT * FROM outbox WHERE due_at < {time.time()}") == [], what="all being tried"
        )
        seen = await until(service, lambda s: s.value("pyoco_outbox_due_rows") == 7, "all of them being counted")
        await until(
            service,
            lambda s: (
                (s.value("pyoco_outbox_oldest_due_seconds") or 0)
                > (seen.value("pyoco_outbox_oldest_due_seconds") or 0) + 1
            ),
            "the backlog growing older",
        )


async def test_every_dispatch_is_timed_also_those_of_batches_schedules_and_retries(service: RunsUnderTest) -> None:
    batch = {"runs": [{"flow_name": "hello"}] * 3}
    assert (await service.client.post("/runs/batch", json=batch)).status_code == 200
    run_id = await service.submit(delay_sec=0.1)
    await until(service, lambda s: s.value("pyoco_relay_duration_seconds_count") == 4, "the batch and the schedule")
    await service.claim(run_id)
    await service.change(
        run_id, lambda s: s.retry_later(now=time.time(), not_before=time.time(), error="x", reason=None)
    )
    await until(service, lambda s: s.value("pyoco_relay_duration_seconds_count") == 5, "the retry")


async def test_a_submit_that_is_taken_back_is_no_failure_of_the_relay(service: RunsUnderTest) -> None:
    await refuse_jobs(service)
    assert (await service.client.post("/runs", json={"flow_name": "hello"})).status_code == 503
    seen = await until(service, lambda s: s.value("pyoco_runs_withdrawn_total") == 1, "the submit being counted")
    assert seen.value("pyoco_relay_failures_total") == 0
    batch = {"runs": [{"flow_name": "hello"}] * 3}
    assert (await service.client.post("/runs/batch", json=batch)).status_code == 200
    seen = await until(service, lambda s: s.value("pyoco_relay_failures_total") == 3, "all of the batch being tried")
    assert seen.value("pyoco_runs_withdrawn_total") == 1


@pytest.mark.own_nats
async def test_without_nats_the_other_metrics_are_still_there(
    service: RunsUnderTest, nats_server: NatsServer
) -> None:
    await service.submit()
    await until(service, lambda s: s.value("pyoco_queue_jobs", state="waiting") == 1, "the job seen")
    nats_server.kill()
    seen = await until(
        service,
        lambda s: s.value("pyoco_nats_up") == 0 and s.value("pyoco_queue_jobs") is None,
        "NATS being away",
    )
    assert seen.value("pyoco_runs_total", status="PENDING") == 1
    assert seen.value("pyoco_ledger_up") == 1
    assert seen.value("pyoco_runs_submitted_total") == 1
    assert math.isnan(seen.value("pyoco_dlq_messages_total") or 0)
    nats_server.start()
    seen = await until(
        service, lambda s: s.value("pyoco_nats_up") == 1 and s.value("pyoco_queue_jobs") is not None, "NATS back"
    )
    assert (seen.value("pyoco_nats_reconnects_total") or 0) >= 1


async def test_without_a_ledger_the_other_metrics_are_still_there(nats_server: NatsServer, tmp_path: Path) -> None:
    nowhere = "postgresql+psycopg://nobody@127.0.0.1:1/nothing"
    async with running(build(runs_settings(nats_server, tmp_path, runs_database_url=nowhere))) as client:

        async def nats_is_up() -> bool:
            return Scrape((await client.get("/metrics")).text).value("pyoco_nats_up") == 1

        await eventually(nats_is_up, what="NATS up")
        seen = Scrape((await client.get("/metrics")).text)
        assert seen.value("pyoco_ledger_up") == 0
        assert seen.value("pyoco_runs_total") is None
        assert math.isnan(seen.value("pyoco_outbox_due_rows") or 0)


async def test_many_scrapes_at_once_ask_ledger_and_streams_once(
    service: RunsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    fetch = service.app.state.service.gauges._database.fetch

    async def counted(query: object) -> object:
        asked.append(str(query))
        return await fetch(query)

    monkeypatch.setattr(service.app.state.service.gauges._database, "fetch", counted)
    monkeypatch.setattr(service.app.state.service.gauges, "_asked_at", float("-inf"))
    await asyncio.gather(*(scrape(service) for _ in range(20)))
    assert 0 < len(asked) < 20
    # Of these there may be one for every flow that somebody has invented.
    assert not any("dead_letter_groups" in query for query in asked)

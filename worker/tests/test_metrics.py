"""The metrics of a worker."""

from collections.abc import Callable
from typing import get_args

import httpx
import pytest
from prometheus_client import generate_latest

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_testkit.nats_server import free_port
from fleet_testkit.scrapes import Scrape
from fleet_testkit.waiting import eventually
from fleet_worker.job import disposition
from fleet_worker.job.telemetry.metrics import WorkerMetrics

from .conftest import Desk, WorkerProcess

_ENDED = RunSnapshot(run_id="r", flow_name="f", status=RunStatus.COMPLETED, heartbeat_at=1.0, updated_at=1.0)
OUTCOMES: list[disposition.Outcome] = [
    disposition.InvalidJob("no job"),
    disposition.RunMissing("none", given_up=False),
    disposition.AlreadyEnded(_ENDED),
    disposition.HeldElsewhere(1.0),
    disposition.NotYet(1.0),
    disposition.Ended(RunStatus.FAILED),
    disposition.RetryScheduled(),
    disposition.HandedBack(1.0),
    disposition.DeclinedJob(None),
    disposition.Fenced(),
    disposition.Unrecorded("no"),
]


def test_every_way_a_job_can_go_has_a_name_of_its_own() -> None:
    assert {type(outcome) for outcome in OUTCOMES} == set(get_args(disposition.Outcome))
    metrics = WorkerMetrics()
    for outcome in OUTCOMES:
        metrics.count(outcome)
    seen = Scrape(generate_latest(metrics.registry).decode())
    assert len(seen.label_values("pyoco_worker_jobs_total", "outcome")) == len(OUTCOMES)


def test_names_of_flows_that_nobody_found_use_up_no_names() -> None:
    metrics = WorkerMetrics(max_flows=2)
    for number in range(300):
        metrics.note_run(f"invented-{number}", 0.1, found=False)
    for flow in ("hello", "report", "third"):
        metrics.note_run(flow, 0.1, found=True)
    metrics.note_run("hello", 0.1, found=False)
    seen = Scrape(generate_latest(metrics.registry).decode())
    duration = "pyoco_worker_run_duration_seconds_count"
    assert seen.label_values(duration, "flow") == {"hello", "report", "other"}
    assert (seen.value(duration, flow="hello"), seen.value(duration, flow="other")) == (2, 301)


@pytest.mark.timeout(120)
async def test_a_worker_names_only_flows_that_it_has(desk: Desk, start_worker: Callable[..., WorkerProcess]) -> None:
    port = free_port()
    start_worker("w1", PYOCO_MONITOR_PORT=str(port), PYOCO_METRICS_MAX_FLOWS="1")
    for flow in ("invented", "tiny"):
        await desk.wait_ended(await desk.submit(flow))
    async with httpx.AsyncClient(timeout=30) as client:
        seen = Scrape((await client.get(f"http://127.0.0.1:{port}/metrics")).text)
    assert seen.label_values("pyoco_worker_run_duration_seconds_count", "flow") == {"other", "tiny"}


@pytest.mark.timeout(120)
async def test_a_worker_counts_runs_that_end_and_runners_that_die(
    desk: Desk, start_worker: Callable[..., WorkerProcess]
) -> None:
    port = free_port()
    start_worker("w1", PYOCO_MONITOR_PORT=str(port))
    await desk.wait_ended(await desk.submit("crashing"))

    async def counted() -> Scrape | None:
        async with httpx.AsyncClient(timeout=30) as client:
            seen = Scrape((await client.get(f"http://127.0.0.1:{port}/metrics")).text)
        return seen if seen.value("pyoco_worker_jobs_total", outcome="failed") else None

    seen = await eventually(counted, what="the end of the run being counted")
    assert seen is not None
    assert seen.value("pyoco_worker_runner_deaths_total") == 3
    assert seen.value("pyoco_worker_jobs_total", outcome="handed_back") == 2
    assert seen.value("pyoco_worker_claim_duration_seconds_count") == 3
    # What was delivered again was in our hands before, not in the queue.
    assert seen.value("pyoco_worker_queue_wait_seconds_count") == 1
    assert (seen.value("pyoco_worker_snapshot_bytes_count") or 0) >= 6
    assert (seen.value("pyoco_worker_slots"), seen.value("pyoco_nats_up")) == (1, 1)

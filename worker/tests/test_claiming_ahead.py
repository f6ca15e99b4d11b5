"""Jobs that are claimed before a runner is free for them: worth it for short runs, and never in the way of others."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.snapshot import AttemptOutcome, RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.nats.pull import Puller
from fleet_testkit.waiting import eventually
from fleet_worker.boundary.frames import Setup
from fleet_worker.job import turn as turn_module
from fleet_worker.job.claims import Claims
from fleet_worker.job.declining import Declining
from fleet_worker.job.delivery import Delivery
from fleet_worker.job.disposition import Ended, Fenced, HandedBack, Outcome
from fleet_worker.job.execution import Execution
from fleet_worker.job.services import Services
from fleet_worker.job.snapshots import Snapshots
from fleet_worker.job.states import StopReason
from fleet_worker.pool.pace import Pace
from fleet_worker.pool.pool import RunnerPool
from fleet_worker.presence.record import Registry

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]


@dataclass(frozen=True, slots=True)
class Waiting:
    run_id: str
    execution: Execution
    outcome: asyncio.Task[Outcome]


def ahead(pace: Pace, *busy_for: float, runners: int = 1) -> int:
    return pace.jobs_ahead(runners=runners, busy_since=[100.0 - seconds for seconds in busy_for], now=100.0)


def paced(seconds: float, runs: int = 60) -> Pace:
    pace = Pace()
    for _ in range(runs):
        pace.note(seconds)
    return pace


def test_only_short_runs_are_worth_claiming_ahead() -> None:
    assert ahead(Pace()) == 0
    assert ahead(paced(0.002, runs=5)) == 0
    assert ahead(paced(0.002)) == 8
    assert ahead(paced(0.01)) == 4
    assert ahead(paced(0.1)) == 0
    assert ahead(paced(0.002), runners=64) == 8


def test_one_long_run_or_one_disappointment_ends_claiming_ahead() -> None:
    long_run, disappointed = paced(0.002), paced(0.002)
    long_run.note(3600.0)
    disappointed.forget()
    assert (ahead(long_run), ahead(disappointed)) == (0, 0)
    for _ in range(60):
        long_run.note(0.002)
    assert ahead(long_run) == 8


def test_nothing_is_claimed_ahead_for_a_runner_that_is_busy_for_long() -> None:
    assert ahead(paced(0.01), 0.2) == 0
    assert ahead(paced(0.01), 0.2, 0.01, runners=2) == 4


async def submit_behind_short_runs(desk: Desk, long_flow: str, *flows: str, **params: str) -> list[str]:
    """Runs that come right after so many short ones that the worker claims ahead by then; `params` of the first."""
    for _ in range(80):
        await desk.submit("tiny")
    return [await desk.submit(long_flow, **params), *[await desk.submit(flow) for flow in flows]]


async def wait_claimed_ahead(desk: Desk, run_ids: list[str]) -> None:
    """Until one of the runs was claimed although its worker's only runner was busy."""

    async def is_claimed() -> bool:
        return any([(await desk.snapshot(run_id)).attempt > 0 for run_id in run_ids])

    await eventually(is_claimed, what="a run that is claimed ahead", within=30)


async def test_a_job_claimed_ahead_behind_a_long_run_is_soon_handed_to_another_worker(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    long_run, *behind = await submit_behind_short_runs(
        desk, "waiting", "tiny", "tiny", "tiny", file=str(tmp_path / "go")
    )
    start_worker("w1")
    await wait_claimed_ahead(desk, behind)
    start_worker("w2")
    runs = [await desk.wait_ended(run_id) for run_id in behind]
    assert {(run.status, run.worker_id, run.interruptions) for run in runs} == {(RunStatus.COMPLETED, "w2", 0)}
    handed_back = [attempt for run in runs for attempt in run.earlier_attempts]
    assert {(attempt.outcome, attempt.worker_id) for attempt in handed_back} == {(AttemptOutcome.HANDED_BACK, "w1")}
    assert all(attempt.end_time - (attempt.start_time or 0.0) < 3.0 for attempt in handed_back)
    assert (await desk.snapshot(long_run)).status is RunStatus.RUNNING
    (tmp_path / "go").touch()
    assert (await desk.wait_ended(long_run)).attempt == 1


async def test_a_long_run_after_short_ones_keeps_no_other_job_and_uses_up_no_deliveries(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    long_run, *behind = await submit_behind_short_runs(desk, "waiting", *["tiny"] * 8, file=str(tmp_path / "go"))
    start_worker("w1")
    await wait_claimed_ahead(desk, behind)

    async def are_back() -> bool:
        return all([not (await desk.snapshot(run_id)).is_held for run_id in behind])

    await eventually(are_back, what="every job behind the long run handed back")
    running = await desk.wait_running(long_run)
    # Several heartbeats later still nobody has taken them again.
    await desk.wait_for(long_run, lambda run: run.heartbeat_at > running.heartbeat_at + 1.0, what="heartbeats")
    assert await are_back()
    (tmp_path / "go").touch()
    runs = [await desk.wait_ended(run_id) for run_id in [long_run, *behind]]
    assert {run.status for run in runs} == {RunStatus.COMPLETED}
    # Each was handed back once at most.
    assert max(run.attempt for run in runs) == 2
    await desk.wait_queue_empty()
    info = await desk.link.jetstream.consumer_info("PYOCO_WORK", desk.settings.work_durable("default"))
    assert info.delivered.consumer_seq <= 80 + 1 + 2 * len(behind)


@pytest.fixture
async def waiting(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Waiting]:
    """A run that is claimed and waits for a runner that does not come."""
    monkeypatch.setattr(turn_module, "_WAIT_SECONDS", 60.0)
    settings, link = desk.settings, desk.link
    snapshots = Snapshots(link, settings.runs_kv_bucket, max_bytes=settings.max_run_snapshot_bytes)
    pool = RunnerPool(Setup(None, None, str(tmp_path)), slots=1)  # never started
    services = Services(
        link,
        settings,
        Claims(snapshots=snapshots, settings=settings, instance_id="one life", stopping=asyncio.Event()),
        Declining(link, settings, pool),
        pool,
        Registry(link, settings, instance_id="one life"),
        tmp_path,
    )
    run_id = await desk.submit("tiny")
    puller = Puller(link, stream=settings.work_stream, durables=[settings.work_durable("default")])
    await puller.start()
    [msg] = await puller.take(1)
    delivery = Delivery.of(msg)
    execution = Execution(services, Job.decode(delivery.data), delivery)
    running = asyncio.create_task(execution.run())
    await desk.wait_for(run_id, lambda run: run.attempt == 1, what="the claim")
    yield Waiting(run_id, execution, running)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_run_that_is_cancelled_while_it_waits_for_a_runner_is_never_begun(
    desk: Desk, waiting: Waiting
) -> None:
    await desk.change(waiting.run_id, lambda run: run.request_cancel(by="ada", now=5.0))
    await waiting.execution.look()
    async with asyncio.timeout(30):
        assert await waiting.outcome == Ended(RunStatus.CANCELLED)
    run = await desk.snapshot(waiting.run_id)
    assert (run.status, run.attempt, run.tasks) == (RunStatus.CANCELLED, 1, {})


async def test_a_run_whose_deadline_passes_while_it_waits_for_a_runner_fails(desk: Desk, waiting: Waiting) -> None:
    await desk.change(waiting.run_id, lambda run: run.model_copy(update={"deadline_at": time.time()}))
    await waiting.execution.look()
    await waiting.execution.keep_alive(60.0, ack_wait_seconds=120.0)
    async with asyncio.timeout(30):
        outcome = await waiting.outcome
    assert isinstance(outcome, Ended)
    assert (outcome.status, outcome.reason) == (RunStatus.FAILED, DeadLetterReason.DEADLINE_EXCEEDED)
    assert (await desk.snapshot(waiting.run_id)).error == "the run's deadline passed while it waited for a runner"


async def test_a_run_that_another_worker_claims_while_it_waits_for_a_runner_is_left_to_that_one(
    desk: Desk, waiting: Waiting
) -> None:
    def claim_elsewhere(run: RunSnapshot) -> RunSnapshot:
        again = run.hand_back(now=5.0, interrupted=True)
        return again.claim(worker_id="w9", worker_instance_id="other", ack_subject=None, now=5.0)

    revision = await desk.change(waiting.run_id, claim_elsewhere)
    await waiting.execution.look()
    # The first reason decides.
    waiting.execution.stop(StopReason.STOPPING)
    async with asyncio.timeout(30):
        assert await waiting.outcome == Fenced()
    entry = await desk.runs.get(waiting.run_id)
    assert entry is not None
    assert entry.revision == revision


async def test_a_run_that_waits_for_a_runner_has_a_heartbeat_and_is_handed_back_when_the_worker_stops(
    desk: Desk, waiting: Waiting
) -> None:
    claimed = await desk.snapshot(waiting.run_id)
    await waiting.execution.look()
    assert (await desk.snapshot(waiting.run_id)).heartbeat_at > claimed.heartbeat_at
    waiting.execution.stop(StopReason.STOPPING)
    async with asyncio.timeout(30):
        assert await waiting.outcome == HandedBack(0.0)
    run = await desk.snapshot(waiting.run_id)
    assert (run.status, run.worker_id, run.interruptions) == (RunStatus.PENDING, None, 0)


async def test_a_run_that_waits_for_a_runner_is_handed_back_at_once_when_the_worker_is_drained(
    desk: Desk, waiting: Waiting
) -> None:
    waiting.execution.step_back()
    async with asyncio.timeout(30):
        assert await waiting.outcome == HandedBack(0.0)
    run = await desk.snapshot(waiting.run_id)
    assert (run.status, run.worker_id, run.interruptions) == (RunStatus.PENDING, None, 0)
    # Now that it is over there is nothing left to step back from.
    waiting.execution.step_back()

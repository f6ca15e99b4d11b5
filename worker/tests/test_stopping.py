"""A worker that is asked to stop finishes or hands back, and leaves nothing behind."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from fleet_contracts.status import RunStatus, WorkerState
from fleet_testkit.waiting import eventually

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]


async def test_a_stopping_worker_lets_its_run_finish(desk: Desk, start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker("w1")
    run_id = await desk.submit("waiting", file=str(tmp_path / "go"))
    await desk.wait_running(run_id)
    worker.process.send_signal(signal.SIGTERM)
    await eventually(lambda: "stopping; 1 runs in hand" in worker.log)
    later = await desk.submit("tiny")
    (tmp_path / "go").touch()
    assert worker.process.wait(timeout=30) == 0
    run = await desk.snapshot(run_id)
    assert (run.status, run.attempt) == (RunStatus.COMPLETED, 1)
    assert (await desk.snapshot(later)).status is RunStatus.PENDING
    assert worker.run_folders() == []


async def test_what_does_not_finish_in_time_is_handed_back(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker("w1", PYOCO_WORKER_STOP_GRACE_SEC="0.3")
    run_id = await desk.submit("waiting", file=str(tmp_path / "go"))
    await desk.wait_running(run_id)
    assert worker.stop() == 0
    run = await desk.snapshot(run_id)
    assert (run.status, run.attempt, run.worker_id, run.interruptions) == (RunStatus.PENDING, 1, None, 0)
    assert worker.run_folders() == []
    start_worker("w2")
    (tmp_path / "go").touch()
    run = await desk.wait_ended(run_id)
    assert (run.status, run.attempt, run.worker_id) == (RunStatus.COMPLETED, 2, "w2")


async def test_a_second_signal_hands_back_at_once(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1", PYOCO_WORKER_STOP_GRACE_SEC="60")
    run_id = await desk.submit("waiting")
    await desk.wait_running(run_id)
    worker.process.send_signal(signal.SIGINT)
    await eventually(lambda: "stopping; 1 runs in hand" in worker.log)
    started = time.monotonic()
    assert worker.stop(signal.SIGINT) == 130
    assert time.monotonic() - started < 30
    assert (await desk.snapshot(run_id)).status is RunStatus.PENDING


async def test_a_stopped_worker_leaves_no_process(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1", "--slots", "2")
    await eventually(lambda: desk.worker_record("w1"))
    await eventually(lambda: len(worker.runners()) == 2)
    family = psutil.Process(worker.process.pid).children(recursive=True)
    assert worker.stop() == 0
    assert not any(process.is_running() for process in family)
    record = await desk.worker_record("w1")
    assert record is not None
    assert record.state is WorkerState.STOPPED_GRACEFUL


async def test_a_worker_without_nats_stops_as_well(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1", "--nats-url", "nats://127.0.0.1:9")
    await eventually(lambda: "ERR-PYOCO-0003" in worker.log)
    assert worker.stop() == 0

"""The worker's own record: what it does, that it lives, and what belongs to the operators."""

import os
import platform
import socket
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import psutil

from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_testkit.waiting import eventually

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]


async def wait_for(desk: Desk, worker_id: str, condition: Callable[[WorkerRecord], object]) -> WorkerRecord:
    async def look() -> WorkerRecord | None:
        record = await desk.worker_record(worker_id)
        return record if record is not None and condition(record) else None

    found = await eventually(look, within=20, what="the worker's record")
    assert found is not None
    return found


async def test_the_record_follows_the_worker(desk: Desk, start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker("w1", "--tags", "default,gpu", "--slots", "2")
    idle = await wait_for(desk, "w1", lambda record: record.state is WorkerState.IDLE)
    assert (idle.tags, idle.slots, idle.hidden) == (["default", "gpu"], 2, False)
    assert (idle.wheel_sync.enabled, idle.wheel_sync.last_result) == (False, "disabled")
    assert abs(idle.last_seen_at - time.time()) < 20
    assert {"tiny", "waiting"} <= set(idle.flows)
    machine = idle.machine
    assert (machine.pid, machine.host, machine.cpu_count) == (
        worker.process.pid,
        socket.gethostname(),
        os.cpu_count(),
    )
    assert (machine.python_version, machine.pyoco_version) == (platform.python_version(), version("pyoco"))
    assert machine.fleet_version == version("pyoco-fleet-worker")
    assert idle.started_at is not None
    assert abs(idle.started_at - time.time()) < 20
    run_id = await desk.submit("waiting", file=str(tmp_path / "go"))
    busy = await wait_for(desk, "w1", lambda record: record.state is WorkerState.RUNNING)
    assert (busy.current_run_id, busy.current_run_ids) == (run_id, [run_id])
    await wait_for(desk, "w1", lambda record: record.last_heartbeat_at > busy.last_heartbeat_at)
    (tmp_path / "go").touch()
    done = await wait_for(desk, "w1", lambda record: record.state is WorkerState.IDLE and record.last_run_id)
    assert (done.last_run_id, done.last_run_status, done.current_run_id) == (run_id, "COMPLETED", None)
    assert done.last_run_started_at is not None
    assert done.last_run_finished_at is not None
    assert done.last_run_started_at < done.last_run_finished_at
    assert worker.stop() == 0
    stopped = await wait_for(desk, "w1", lambda record: record.state is WorkerState.STOPPED_GRACEFUL)
    assert stopped.stop_reason == "graceful_shutdown"
    assert stopped.stopped_at is not None
    assert stopped.last_run_id == run_id


async def test_what_the_worker_uses_is_measured_with_all_that_it_has_started(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker("w1")
    run_id = await desk.submit("computing", file=str(tmp_path / "go"))
    await desk.wait_running(run_id)
    # A run that computes all the time, in a process of the runner's own.
    hot = await wait_for(desk, "w1", lambda record: (record.machine.cpu_percent or 0.0) > 20.0)
    family = [psutil.Process(worker.process.pid), *psutil.Process(worker.process.pid).children(recursive=True)]
    assert len(family) == 3
    resident = sum(process.memory_info().rss for process in family)
    assert hot.machine.memory_bytes is not None
    assert 0.5 * resident < hot.machine.memory_bytes < 1.5 * resident
    assert hot.machine.memory_total_bytes == psutil.virtual_memory().total
    (tmp_path / "go").touch()
    await desk.wait_ended(run_id)
    await wait_for(desk, "w1", lambda record: (record.machine.cpu_percent or 0.0) < 20.0)


async def test_hidden_is_kept_across_restarts_and_while_the_worker_runs(
    desk: Desk, start_worker: StartWorker
) -> None:
    old = WorkerRecord(
        worker_id="w1",
        instance_id="before",
        state=WorkerState.STOPPED_GRACEFUL,
        hidden=True,
        last_seen_at=1.0,
        last_heartbeat_at=1.0,
        last_run_id="r0",
    )
    await desk.workers.create("w1", old.encode())
    start_worker("w1")
    record = await wait_for(desk, "w1", lambda record: record.state is WorkerState.IDLE)
    assert (record.hidden, record.last_run_id, record.stopped_at) == (True, "r0", None)
    assert record.instance_id != "before"
    entry = await desk.workers.get("w1")
    assert entry is not None
    shown = WorkerRecord.decode(entry.value).model_copy(update={"hidden": False, "note": "ours"})
    await desk.workers.put("w1", shown.encode())
    written = time.time()
    record = await wait_for(desk, "w1", lambda record: record.last_seen_at > written)
    assert (record.hidden, record.model_extra) == (False, {"note": "ours"})


async def test_a_burst_of_runs_causes_few_writes_of_the_record(desk: Desk, start_worker: StartWorker) -> None:
    run_ids = [await desk.submit("tiny") for _ in range(200)]
    start_worker("w1")
    started = time.monotonic()
    for run_id in run_ids:
        await desk.wait_ended(run_id)
    state = (await desk.link.jetstream.stream_info(f"KV_{desk.settings.workers_kv_bucket}")).state
    assert state.last_seq <= 4 * (time.monotonic() - started) + 4

"""Processes that a run has started end with it, however it ends and wherever they have gone."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.waiting import eventually

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]
ENDED = {
    "by itself": RunStatus.COMPLETED,
    "by a cancel": RunStatus.CANCELLED,
    "with its runner": RunStatus.FAILED,
}


@pytest.mark.parametrize("way", ENDED)
async def test_what_a_run_has_started_ends_with_it(
    desk: Desk, start_worker: StartWorker, tmp_path: Path, way: str
) -> None:
    worker = start_worker("w1", PYOCO_RUNNER_CRASH_LIMIT="1")
    file = tmp_path / "pids"
    run_id = await desk.submit("fertile", file=str(file), wait=way != "by itself")
    await eventually(file.exists, what="the processes", within=60)
    started = [int(pid) for pid in file.read_text().split()]
    assert len(started) == 4
    if way == "by a cancel":
        await desk.change(run_id, lambda snapshot: snapshot.request_cancel(by="ada", now=1.0))
    elif way == "with its runner":
        assert all(map(is_alive, started))
        [runner] = worker.runners()
        runner.kill()
    run = await desk.wait_ended(run_id)
    assert run.status is ENDED[way]
    # Before its end is recorded, so that nobody who waits for it meets them.
    assert not any(map(is_alive, started))
    # The worker goes on, with a runner that knows nothing of processes that are gone.
    assert (await desk.wait_ended(await desk.submit("tiny"))).status is RunStatus.COMPLETED


async def test_what_a_run_has_started_ends_also_when_its_agent_is_killed(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker, bystander = start_worker("w1"), start_worker("w2", "--tags", "gpu")
    file, others = tmp_path / "pids", tmp_path / "pids-of-others"
    await desk.submit("fertile", file=str(file), wait=True)
    of_others = await desk.submit("fertile", tag="gpu", file=str(others), wait=True)
    await eventually(lambda: file.exists() and others.exists(), what="the processes", within=60)
    started, spared = ([int(pid) for pid in one.read_text().split()] for one in (file, others))
    worker.kill()
    await eventually(lambda: not any(map(is_alive, started)), what="the processes of the run gone")
    assert all(map(is_alive, [*spared, bystander.process.pid]))
    await desk.change(of_others, lambda snapshot: snapshot.request_cancel(by="ada", now=1.0))
    await desk.wait_ended(of_others)


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False

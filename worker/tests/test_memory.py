"""A run that needs more memory than it may have fails with a sentence, and its worker goes on."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fleet_contracts.status import RunStatus
from fleet_worker.boundary import memory
from fleet_worker.boundary.memory import sentence_about

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]
LIMIT = 64 * 1024**2


async def test_a_run_that_exceeds_its_memory_fails_and_says_so(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1", PYOCO_RUN_MEMORY_MAX_BYTES=str(LIMIT))
    said = f"the run needed more memory than PYOCO_RUN_MEMORY_MAX_BYTES={LIMIT} allows"
    run = await desk.wait_ended(await desk.submit("hungry", megabytes=1024))
    assert (run.status, run.reason, run.attempt) == (RunStatus.FAILED, "execution_error", 1)
    assert (run.error or "").startswith(f"MemoryError: {said}")
    # Each of them is within the limit, all of them together are not.
    run = await desk.wait_ended(await desk.submit("hungry", megabytes=60, processes=3))
    assert (run.status, run.reason, run.attempt) == (RunStatus.FAILED, "execution_error", 1)
    assert (run.error or "").startswith(said)
    await desk.wait_queue_empty()
    assert [letter.reason for letter in await desk.dead_letters()] == ["execution_error"] * 2
    assert (await desk.wait_ended(await desk.submit("hungry", megabytes=32))).status is RunStatus.COMPLETED
    assert worker.process.poll() is None
    assert psutil.Process(worker.process.pid).children(recursive=True) == worker.runners()
    messages = [line["message"] for line in worker.log_lines if line.get("err_id") == "ERR-PYOCO-0007"]
    assert [said in message for message in messages] == [True, True]


async def test_a_result_as_large_as_the_memory_is_left_out_and_one_that_cannot_be_read_fails_its_run(
    desk: Desk, start_worker: StartWorker
) -> None:
    start_worker("w1", PYOCO_RUN_MEMORY_MAX_BYTES=str(LIMIT))
    run = await desk.wait_ended(await desk.submit("generous", megabytes=56))
    assert (run.status, run.attempt, run.result) == (RunStatus.COMPLETED, 1, None)
    assert run.result_truncated
    assert run.task_records["return_much"]["output"] == "<dict: too large to be shown>"
    run = await desk.wait_ended(await desk.submit("generous"))
    assert (run.status, run.reason, run.attempt) == (RunStatus.FAILED, "execution_error", 1)
    assert (run.error or "").startswith(f"ValueError: there was too much of it; {sentence_about(LIMIT)}")


async def test_without_a_limit_a_run_may_use_what_there_is(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1", PYOCO_RUN_MEMORY_MAX_BYTES="0")
    assert (await desk.wait_ended(await desk.submit("hungry", megabytes=300))).status is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("container_gib", "slots", "gib"), [(10, 2, 4.0), (10, 4, 2.0), (10, 16, 1.0), (0.5, 1, 0.4), (None, 2, 4.0)]
)
def test_a_run_may_use_its_share_of_the_machine_or_the_container(
    container_gib: float | None, slots: int, gib: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("max" if container_gib is None else str(int(container_gib * 1024**3)))
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", [limit, tmp_path / "none"])
    monkeypatch.setattr(memory, "_machine_bytes", lambda: (10 if container_gib is None else 100) * 1024**3)
    assert memory.default_limit_bytes(slots) == pytest.approx(gib * 1024**3)

"""`async def` tasks are awaited, can be cancelled, and leave nothing behind."""

import asyncio
import time
from pathlib import Path

import pytest

from fleet_contracts.status import RunStatus, TaskStatus
from fleet_testkit.waiting import eventually

from .one_runner import one_runner


async def test_async_tasks_run_beside_each_other_and_beside_plain_ones(tmp_path: Path) -> None:
    async with one_runner(tmp_path) as runner:
        run = await runner.run("beside")
        spans = run.done.result.values()
        assert max(began for began, _ in spans) < min(ended for _, ended in spans)
        # What is printed belongs to its task, also in tasks and threads of asyncio.
        assert (run.said("left"), run.said("plain")) == ("left done\n", "plain\n")
        assert run.said("right") == "right in a task in a thread\n"
        chain = await runner.run("chain", name="Ada")
        assert (chain.done.error, chain.done.result) == (None, "FETCHED ADA")
        loop = await runner.run("in_loop")
        assert (loop.done.status, loop.done.result) == (RunStatus.COMPLETED, "again")


@pytest.mark.parametrize("then", [None, "cleaning up failed"])
async def test_a_cancel_reaches_a_coroutine_at_once(tmp_path: Path, then: str | None) -> None:
    async with one_runner(tmp_path) as runner:
        run = runner.begin()
        running = asyncio.create_task(runner.run("waiting", run, then=then))
        await eventually(lambda: "waiting" in run.said())
        runner.process.cancel(run.run_id)
        await running
        assert run.done.status is RunStatus.CANCELLED
        assert run.done.tasks == {"wait_long": TaskStatus.CANCELLED, "after": TaskStatus.CANCELLED}
        assert (run.done.task_records or {})["wait_long"]["state"] == "CANCELLED"
        assert run.said() == "waiting\ncancelled\n"
        assert (await runner.run("chain")).done.status is RunStatus.COMPLETED


async def test_a_coroutine_that_swallows_its_cancel_goes_on(tmp_path: Path) -> None:
    async with one_runner(tmp_path) as runner:
        run = runner.begin()
        running = asyncio.create_task(runner.run("waiting", run, stubborn=True))
        await eventually(lambda: "waiting" in run.said())
        runner.process.cancel(run.run_id)
        await eventually(lambda: "cancelled" in run.said())
        assert not running.done()
        # As the agent does after the grace period.
        runner.process.kill()
        await asyncio.wait([running])
        assert running.exception() is not None


async def test_a_timeout_cancels_a_coroutine(tmp_path: Path) -> None:
    async with one_runner(tmp_path) as runner:
        began = time.monotonic()
        run = await runner.run("slow")
        assert time.monotonic() - began < 10
        assert (run.done.status, run.done.error) == (
            RunStatus.FAILED,
            "TimeoutError: Task 'too_slow' exceeded timeout of 0.2s",
        )
        assert run.said() == "ended\n"


@pytest.mark.parametrize(
    ("how", "error"),
    [("error", "TimeoutError: my own"), ("exit", "SystemExit: 3"), ("cancelled", "CancelledError: ")],
)
async def test_an_exception_of_a_coroutine_fails_its_run_and_nothing_else(
    tmp_path: Path, how: str, error: str
) -> None:
    async with one_runner(tmp_path) as runner:
        run = await runner.run("failing", how=how)
        assert (run.done.status, run.done.error, run.done.spent) == (RunStatus.FAILED, error, False)
        assert (await runner.run("chain")).done.status is RunStatus.COMPLETED


async def test_a_run_leaves_no_coroutine_behind(tmp_path: Path) -> None:
    async with one_runner(tmp_path) as runner:
        first, second = [await runner.run("leaving") for _ in range(2)]
        assert first.said() == "left behind\n"
        assert (first.done.spent, first.done.result) == (False, second.done.result)
        # One that does not end has its runner replaced.
        stuck = await runner.run("leaving", stuck=True)
        assert (stuck.done.status, stuck.done.spent) == (RunStatus.COMPLETED, True)


@pytest.mark.parametrize(
    ("flow", "sentence"),
    [
        ("streaming", "task 'stream' is an asynchronous generator"),
        ("nested", "task 'nest' has returned a coroutine from a coroutine"),
    ],
)
async def test_values_that_would_have_to_be_awaited_again_are_refused(
    tmp_path: Path, flow: str, sentence: str
) -> None:
    async with one_runner(tmp_path) as runner:
        run = await runner.run(flow)
        assert run.done.status is RunStatus.FAILED
        assert (run.done.error or "").startswith(f"NotSupported: {sentence}")
        assert "never awaited" not in run.said()

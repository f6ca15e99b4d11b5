"""All that a run says is recorded: in order, with its task, its stream and its level."""

import asyncio
import contextvars
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from fleet_contracts.status import RunStatus
from fleet_worker.pool.runner_process import RunnerDied
from fleet_worker.runner.recording.output import Output
from fleet_worker.runner.recording.recorder import Recorder

from .one_runner import one_runner


def pieces(output: list[dict[str, Any]]) -> list[tuple[str, str | None, str]]:
    """Stream, level and text; printed text may have been sent in several pieces."""
    joined: list[tuple[str, str | None, str]] = []
    for event in output:
        stream, level, text = event["stream"], event.get("level"), event["text"]
        if level is None and joined and joined[-1][:2] == (stream, None):
            text = joined.pop()[2] + text
        joined.append((stream, level, text))
    return joined


async def test_all_that_a_run_says_is_recorded_in_order(tmp_path: Path) -> None:
    async with one_runner(tmp_path) as runner:
        for _ in range(2):
            run = await runner.run("speaking")
            assert run.done.status is RunStatus.COMPLETED
            assert run.said("then") == "then\n"
            assert {event["task"] for event in run.output} == {"say_it_all", "then"}
            stdout, stderr = (
                pieces([event for event in run.output if event["stream"] == stream])
                for stream in ("stdout", "stderr")
            )
            assert "".join(text for _, _, text in stdout) == (
                "printed\nwritten\nfrom a child\nthe child has ended\nin native code\n"
                "in a thread\nin a forked child\nno end of linethen\n"
            )
            assert stderr[:3] == [
                ("stderr", None, "printed to stderr\ngeschrieben: ß\nfrom its stderr\n"),
                ("stderr", "INFO", "for your information\n"),
                ("stderr", "WARNING", "beware\n"),
            ]
            [warned, failed] = stderr[3:]
            assert (warned[1], "UserWarning: this is old" in warned[2]) == ("WARNING", True)
            assert (failed[1], failed[2].splitlines()[::4]) == ("ERROR", ["failed", "ValueError: no"])
            # Two pipes have no common order, but Python's own words come after what was written before them.
            for words in (
                ["written", "printed to stderr", "from a child", "the child has ended"],
                ["from its stderr", "the child has ended", "in native code", "for your information", "in a thread"],
            ):
                places = [run.said().index(word) for word in words]
                assert places == sorted(places)


async def test_tasks_that_talk_at_the_same_time_keep_their_words_apart(tmp_path: Path) -> None:
    async with one_runner(tmp_path) as runner:
        run = await runner.run("together")
        for name in ("ada", "bob"):
            lines = [f"{name} {number}\n{name} logs {number}\n" for number in range(20)]
            assert run.said(name) == "".join(lines)
        # Nobody knows which of several tasks it is from.
        assert run.said("cid") == ""
        assert run.said().count("from nobody\n") == 1


async def test_native_code_that_holds_the_interpreter_is_not_blocked_by_a_full_pipe(tmp_path: Path) -> None:
    async with one_runner(tmp_path, secrets=["xxxx"]) as runner:
        run = await runner.run("flooding", megabytes=3)
        assert (run.done.status, run.done.result) == (RunStatus.COMPLETED, "flooded")
        assert "***" in run.said()
        assert "xxxx" not in run.said()
        assert len(run.said()) <= 2 * 1_000_100


async def test_the_last_words_of_a_crash_are_in_the_agents_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with one_runner(tmp_path) as runner:
        with pytest.raises(RunnerDied, match="signal 6"):
            await runner.run("crashing")
    messages = "\n".join(caplog.messages)
    assert "my last words" in messages
    assert "Fatal Python error: Aborted" in messages


async def test_output_without_end_does_not_hold_up_the_end_of_a_run(tmp_path: Path) -> None:
    async with one_runner(tmp_path) as runner:
        run = await runner.run("flooding", megabytes=1)
        assert (run.done.status, run.done.result, run.done.spent) == (RunStatus.COMPLETED, "flooded", True)
        assert run.said("flood").startswith("xxx")
        assert "is not kept" in run.said()


def test_words_of_a_thread_that_the_run_before_has_left_behind_are_in_no_run() -> None:
    before, now = Recorder(["a"], log_max_bytes=100), Recorder(["b"], log_max_bytes=100)
    before.on_node_start("a")
    left_behind = contextvars.copy_context()
    before.on_node_end("a", 1.0)
    now.on_node_start("b")
    left_behind.run(now.write, "stdout", "late")
    now.write("stdout", "in time")
    now.on_node_end("b", 1.0)
    noted = now.drain()
    assert noted is not None
    assert [event["text"] for event in noted.events if "text" in event] == ["in time"]


async def test_a_thread_and_a_pool_speak_for_the_task_that_uses_them(tmp_path: Path) -> None:
    async with one_runner(tmp_path) as runner:
        before = await runner.run("leaving_thread")
        assert before.said("leave_thread") == before.said() == "in the pool\n"
        now = await runner.run("following")
        assert now.done.status is RunStatus.COMPLETED
        # Nothing of the thread that the run before has left behind.
        assert now.said("follow") == now.said() == "in the same pool\n"


async def test_the_item_of_a_loop_may_log_while_a_thread_logs(tmp_path: Path) -> None:
    async with one_runner(tmp_path) as runner, asyncio.timeout(20):
        run = await runner.run("reading")
        assert run.done.status is RunStatus.COMPLETED
        assert sorted(run.said().splitlines()) == ["from a thread", "from the item"]


def test_a_finalizer_may_log_while_another_thread_logs() -> None:
    output = Output()
    output.begin(Recorder(["a"], log_max_bytes=100, outside=output))
    logger = logging.Logger("finalizers")
    logger.addHandler(output._log_handler)
    is_read, is_locked = threading.Event(), threading.Event()

    class Message:
        def __str__(self) -> str:
            is_read.set()
            is_locked.wait(10)
            return "from the thread"

    thread = threading.Thread(target=logger.info, args=[Message()], daemon=True)
    thread.start()
    is_read.wait(10)

    def finalize() -> None:
        with output.lock:
            is_locked.set()
            logger.info("from the finalizer")

    finalizer = threading.Thread(target=finalize, daemon=True)
    finalizer.start()
    for one in (finalizer, thread):
        one.join(timeout=5)
        assert not one.is_alive()

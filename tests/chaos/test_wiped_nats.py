"""NATS loses its disk while runs are queued: the ledger knows them, they are dispatched again and complete."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from nats.js.errors import NotFoundError

from fleet_testkit.process_pause import pause_process, resume_process
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire
from fleet_testkit.worker_process import WorkerProcess

pytestmark = pytest.mark.long

RUNS = 20


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack without a worker, so that what is submitted stays queued."""
    with Stack(tmp_path_factory.mktemp("forgetful") / "data", "--workers", "0") as stack:
        yield stack


def submit_some(stack: Stack, marks: Path) -> list[str]:
    return [submit(stack.client, "marked", marks=str(marks), label=str(number)) for number in range(RUNS)]


def assert_all_executed_once(
    stack: Stack, run_ids: list[str], marks: Path, *, tmp_path: Path, flows_dir: Path
) -> None:
    # Soon: the loss itself was noticed, not only found by the check that every run gets now and then.
    wait_until(lambda: queued(stack) == RUNS, within=30, what="every run queued again")
    with WorkerProcess(stack.nats_url, tmp_path, "late", tag="default", flows_dir=flows_dir):
        ended = wait_ended(stack.client, run_ids)
    assert {snapshot["status"] for snapshot in ended} == {"COMPLETED"}
    for run_id in run_ids:
        # Numbers are left out: the lost store may have known of attempts that nobody else had heard of.
        [attempt] = stack.client.get(f"/runs/{run_id}/attempts").json()["attempts"]
        assert (attempt["outcome"], attempt["worker_id"]) == ("completed", "late")
    assert sorted(marks.read_text().split(), key=int) == [str(number) for number in range(RUNS)]


def queued(stack: Stack) -> int:
    try:
        return Wire(stack.nats_url).queued("default")
    except NotFoundError:
        return 0  # the stream is not made again yet


def wipe(stack: Stack) -> None:
    shutil.rmtree(stack.data_dir / "nats")


def wipe_under_way(stack: Stack) -> None:
    status = stack.status()
    nats_pid = next(part["pid"] for part in status["parts"] if part["name"] == "nats")
    # The launcher would start NATS again before the store is gone.
    pause_process(status["launcher_pid"])
    try:
        os.kill(nats_pid, signal.SIGKILL)
        wait_until(lambda: psutil.Process(nats_pid).status() == psutil.STATUS_ZOMBIE, what="NATS dead")
        wipe(stack)
    finally:
        resume_process(status["launcher_pid"])
    stack.wait_healthy()


def test_an_execution_that_had_begun_before_the_store_was_lost_is_among_the_attempts(
    forgetful: Stack, tmp_path: Path, flows_dir: Path, marks: Path
) -> None:
    with WorkerProcess(forgetful.nats_url, tmp_path, "holder", tag="held", flows_dir=flows_dir):
        run_id = submit(forgetful.client, "scripted", tag="held", marks=str(marks), script=["hang", "done"])
        wait_until(lambda: marks.read_text().split(), what="the flow being executed")
        wipe_under_way(forgetful)
        wait_ended(forgetful.client, [run_id], within=90)
    attempts = forgetful.client.get(f"/runs/{run_id}/attempts").json()["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["interrupted", "completed"]
    assert marks.read_text().split() == ["execution", "execution"]


def test_runs_survive_a_store_that_is_wiped_while_they_are_queued(
    forgetful: Stack, tmp_path: Path, flows_dir: Path, marks: Path
) -> None:
    run_ids = submit_some(forgetful, marks)
    wipe_under_way(forgetful)
    assert_all_executed_once(forgetful, run_ids, marks, tmp_path=tmp_path, flows_dir=flows_dir)


def test_runs_survive_a_store_that_is_wiped_while_the_stack_is_down(
    forgetful: Stack, tmp_path: Path, flows_dir: Path, marks: Path
) -> None:
    run_ids = submit_some(forgetful, marks)
    forgetful.down()
    wipe(forgetful)
    forgetful.up()
    assert set(run_ids) <= {run["run_id"] for run in forgetful.client.get("/runs", params={"limit": 200}).json()}
    assert_all_executed_once(forgetful, run_ids, marks, tmp_path=tmp_path, flows_dir=flows_dir)

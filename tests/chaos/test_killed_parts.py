"""An answered submit survives the death of any single process right after the answer."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from fleet_testkit.ledger import accepted_run_ids
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import Stack, is_alive
from fleet_testkit.waiting import wait_until

pytestmark = pytest.mark.long

SERVICES = ["auth", "runs-api", "workers-api", "wheels-api", "gateway"]
PARTS = ["nats", *SERVICES, "worker-1"]
RUNS = 6


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory, flows_dir: Path) -> Iterator[Stack]:
    """A stack whose parts are killed one after the other."""
    folder = tmp_path_factory.mktemp("fragile")
    with Stack(folder / "data", "--slots", "2", "--flows-dir", str(flows_dir)) as stack:
        assert list(stack.parts) == PARTS
        yield stack


def submit_some(stack: Stack, marks: Path) -> list[str]:
    return [
        submit(stack.client, "marked", marks=str(marks), label=str(number), seconds=0.3) for number in range(RUNS)
    ]


def executions(marks: Path) -> list[str]:
    return sorted(marks.read_text().split())


@pytest.mark.parametrize("name", PARTS)
def test_answered_runs_survive_kill_9_of(name: str, fragile: Stack, marks: Path) -> None:
    before = fragile.parts[name]
    run_ids = submit_some(fragile, marks)
    os.kill(before["pid"], signal.SIGKILL)
    ended = wait_ended(fragile.client, run_ids, within=60)
    assert {snapshot["status"] for snapshot in ended} == {"COMPLETED"}
    if name in SERVICES:
        # Nobody that executes was touched: nothing may have been executed twice.
        assert executions(marks) == [str(number) for number in range(RUNS)]
    else:
        assert set(executions(marks)) == {str(number) for number in range(RUNS)}
    fragile.wait_healthy()
    after = fragile.parts[name]
    assert (after["state"], after["restarts"]) == ("healthy", before["restarts"] + 1)
    assert after["pid"] != before["pid"]


def test_answered_runs_survive_kill_9_of_a_runner(fragile: Stack, marks: Path) -> None:
    worker = psutil.Process(fragile.pid("worker-1"))
    runners = {runner.pid for runner in worker.children()}
    assert len(runners) == 2
    run_ids = submit_some(fragile, marks)
    wait_until(lambda: executions(marks), what="a run begun")
    victim = runners.pop()
    os.kill(victim, signal.SIGKILL)
    ended = wait_ended(fragile.client, run_ids)
    assert {snapshot["status"] for snapshot in ended} == {"COMPLETED"}
    assert max(snapshot["attempt"] for snapshot in ended) == 2
    wait_until(lambda: len(worker.children()) == 2, what="the runner replaced")
    assert victim not in {runner.pid for runner in worker.children()}


def test_every_run_of_the_ledger_ends_when_its_service_dies_among_submits(fragile: Stack, marks: Path) -> None:
    body = {"flow_name": "marked", "params": {"marks": str(marks), "label": "x"}}
    answered: set[str] = set()
    killed = threading.Event()

    def submit_until_killed() -> None:
        while not killed.is_set():
            try:
                answer = client.post("/runs", json=body)
            except httpx.TransportError:
                return
            if not answer.is_success:
                return
            answered.add(str(answer.json()["run_id"]))

    victim = psutil.Process(fragile.pid("runs-api"))
    with httpx.Client(base_url=fragile.url, timeout=30) as client, ThreadPoolExecutor(16) as threads:
        clients = [threads.submit(submit_until_killed) for _ in range(16)]
        try:
            wait_until(lambda: len(answered) >= 100, what="a hundred answers")
            victim.kill()
            wait_until(lambda: not is_alive(victim), what="runs-api gone")
        finally:
            killed.set()
    for one in clients:
        one.result()

    accepted = accepted_run_ids(fragile)
    assert answered <= accepted
    # Also those that were accepted and never answered.
    ended = wait_ended(fragile.client, accepted, within=60)
    assert {snapshot["status"] for snapshot in ended} == {"COMPLETED"}
    fragile.wait_healthy()


def test_nothing_outlives_a_killed_launcher_and_the_next_one_goes_on(fragile: Stack, marks: Path) -> None:
    launcher = psutil.Process(fragile.status()["launcher_pid"])
    family = [launcher, *launcher.children(recursive=True)]
    run_ids = submit_some(fragile, marks)
    launcher.kill()
    wait_until(lambda: not any(is_alive(process) for process in family), what="the whole family gone")
    fragile.up()
    ended = wait_ended(fragile.client, run_ids, within=60)
    assert {snapshot["status"] for snapshot in ended} == {"COMPLETED"}
    assert set(executions(marks)) == {str(number) for number in range(RUNS)}

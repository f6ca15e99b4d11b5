"""Cancelling through the gateway: whatever a run is doing, it ends, and it ends once."""

from pathlib import Path

from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.worker_process import WorkerProcess


def test_a_running_run_is_cancelled_within_moments(stack: Stack) -> None:
    run_id = submit(stack.client, "long", seconds=60)
    wait_until(lambda: stack.client.get(f"/runs/{run_id}").json()["status"] == "RUNNING", what="the run running")
    answer = stack.client.post(f"/runs/{run_id}/cancel", json={"reason": "changed my mind"})
    assert (answer.status_code, answer.json()["status"]) == (200, "CANCELLING")
    [ended] = wait_ended(stack.client, [run_id], within=10)
    assert (ended["status"], ended["cancel_reason"]) == ("CANCELLED", "changed my mind")
    assert stack.client.post(f"/runs/{run_id}/cancel").json()["status"] == "CANCELLED"


def test_chains_of_short_tasks_hear_their_cancel(stack: Stack, flows_dir: Path, tmp_path: Path, marks: Path) -> None:
    with WorkerProcess(stack.nats_url, tmp_path, "chains", tag="chains", flows_dir=flows_dir):
        for number in range(5):
            run_id = submit(stack.client, "chain", tag="chains", marks=str(marks), label=str(number))
            wait_until(lambda n=number: str(n) in marks.read_text().split(), within=30, what="the chain begun")
            stack.client.post(f"/runs/{run_id}/cancel").raise_for_status()
            [ended] = wait_ended(stack.client, [run_id], within=10)
            assert ended["status"] == "CANCELLED"
    # Four hundred steps each, had nobody listened.
    assert len(marks.read_text().split()) < 5 * 200


def test_a_run_that_nobody_can_start_is_cancelled_too(stack: Stack) -> None:
    run_id = submit(stack.client, "hello", tag="nobody-serves-this")
    assert stack.client.post(f"/runs/{run_id}/cancel").json()["status"] == "CANCELLING"
    [ended] = wait_ended(stack.client, [run_id], within=10)
    assert (ended["status"], ended["attempt"]) == ("CANCELLED", 0)

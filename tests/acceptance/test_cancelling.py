"""Cancelling through the gateway: whatever a run is doing, it ends, and it ends once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import submit, wait_ended, wait_status
from fleet_testkit.waiting import wait_until
from fleet_testkit.worker_process import WorkerProcess


def test_a_running_run_is_cancelled_within_moments(stack: Fleet) -> None:
    run_id = submit(stack.client, "long", seconds=60)
    wait_until(lambda: stack.client.get(f"/runs/{run_id}").json()["status"] == "RUNNING", what="the run running")
    answer = stack.client.post(f"/runs/{run_id}/cancel", json={"reason": "changed my mind"})
    assert (answer.status_code, answer.json()["status"]) == (200, "CANCELLING")
    [ended] = wait_ended(stack.client, [run_id], within=30)
    assert (ended["status"], ended["cancel_reason"]) == ("CANCELLED", "changed my mind")
    assert stack.client.post(f"/runs/{run_id}/cancel").json()["status"] == "CANCELLED"


def test_chains_of_short_tasks_notice_their_cancel(
    stack: Fleet, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    with WorkerProcess(stack.nats_url, tmp_path, "chains", tag="chains", flows_dir=flows_dir):
        for number in range(15):
            run_id = submit(stack.client, "chain", tag="chains", marks=str(marks), label=str(number))
            wait_until(
                lambda label=str(number): label in marks.read_text().split(), within=30, what="the chain begun"
            )
            stack.client.post(f"/runs/{run_id}/cancel").raise_for_status()
            [ended] = wait_ended(stack.client, [run_id], within=30)
            assert ended["status"] == "CANCELLED"
    # Four hundred steps each, had nobody listened.
    assert len(marks.read_text().split()) < 15 * 100


def test_a_run_that_nobody_can_start_is_cancelled_too(stack: Fleet) -> None:
    run_id = submit(stack.client, "hello", tag="nobody-serves-this")
    assert stack.client.post(f"/runs/{run_id}/cancel").json()["status"] == "CANCELLING"
    [ended] = wait_ended(stack.client, [run_id], within=30)
    assert (ended["status"], ended["attempt"]) == ("CANCELLED", 0)


def test_runs_that_are_cancelled_while_they_wait_are_never_begun(
    stack: Fleet, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    quick = WorkerProcess(
        *(stack.nats_url, tmp_path, "occupied"),
        tag="occupied",
        flows_dir=flows_dir,
        PYOCO_CANCEL_GRACE_PERIOD_SEC="0.5",
    )
    with quick:
        first = submit(stack.client, "marked", tag="occupied", marks=str(marks), label="first", seconds=60)
        wait_status(stack.client, first, RunStatus.RUNNING, within=30)
        waiting = [
            submit(stack.client, "marked", tag="occupied", marks=str(marks), label="waited") for _ in range(20)
        ]
        for run_id in [*waiting, first]:
            stack.client.post(f"/runs/{run_id}/cancel").raise_for_status()
        # By now the worker is free and gets their jobs.
        last = submit(stack.client, "marked", tag="occupied", marks=str(marks), label="last")
        ended = wait_ended(stack.client, [*waiting, first, last])
    assert [(run["status"], run["attempt"]) for run in ended[:20]] == [("CANCELLED", 0)] * 20
    assert (ended[20]["status"], ended[21]["status"]) == ("CANCELLED", "COMPLETED")
    assert marks.read_text().split() == ["first", "last"]


@pytest.mark.also_composed("PostgreSQL")
def test_runs_that_are_cancelled_in_the_moment_of_their_submit_are_cancelled(
    stack: Fleet, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    with WorkerProcess(stack.nats_url, tmp_path, "eager", tag="eager", flows_dir=flows_dir, slots=2) as worker:
        worker.wait_registered(stack.client)
        run_ids = []
        for number in range(20):
            run_ids.append(submit(stack.client, "chain", tag="eager", marks=str(marks), label=str(number)))
            stack.client.post(f"/runs/{run_ids[-1]}/cancel").raise_for_status()
        ended = wait_ended(stack.client, run_ids)
    assert [run["status"] for run in ended] == ["CANCELLED"] * 20


@pytest.mark.alone
def test_runs_that_are_cancelled_while_they_fail_all_end(
    stack: Fleet, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    def submit_and_cancel(number: int) -> str:
        label = f"run-{number}"
        # From before the cancel to after it, in steps of two milliseconds.
        run_id = submit(
            stack.client, "failing_late", tag="late", marks=str(marks), label=label, seconds=number * 0.002
        )
        wait_until(lambda: label in marks.read_text().split(), within=30, what="the run begun")
        stack.client.post(f"/runs/{run_id}/cancel").raise_for_status()
        return run_id

    with (
        WorkerProcess(stack.nats_url, tmp_path, "late", tag="late", flows_dir=flows_dir, slots=2),
        ThreadPoolExecutor(2) as threads,
    ):
        run_ids = list(threads.map(submit_and_cancel, range(100)))
        ended = wait_ended(stack.client, run_ids)
    statuses = [run["status"] for run in ended]
    assert set(statuses) == {"FAILED", "CANCELLED"}, statuses
    assert len(marks.read_text().split()) == 100
    listed = stack.client.get("/runs", params={"tag": "late", "limit": 200}).json()
    assert {run["run_id"]: run["status"] for run in listed} == dict(zip(run_ids, statuses, strict=True))


@pytest.mark.also_composed("PostgreSQL")
def test_two_cancels_at_once_get_the_same_answer(stack: Fleet) -> None:
    def cancel(reason: str) -> dict[str, Any]:
        answer: dict[str, Any] = stack.client.post(f"/runs/{run_id}/cancel", json={"reason": reason}).json()
        return {name: answer[name] for name in ("cancel_requested_at", "cancel_requested_by", "cancel_reason")}

    with ThreadPoolExecutor(2) as threads:
        for _ in range(10):
            run_id = submit(stack.client, "hello", tag="nobody-cancels-this-first")
            one, other = threads.map(cancel, ["one", "other"])
            assert one == other
            [ended] = wait_ended(stack.client, [run_id])
            assert ended["status"] == "CANCELLED"
            assert {name: ended[name] for name in one} == one

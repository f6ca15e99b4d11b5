"""Retries through the gateway: a flow that fails is tried again; a worker that dies does not count as a failure."""

from pathlib import Path
from typing import Any

from fleet_contracts.status import RunStatus
from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import wait_ended
from fleet_testkit.waiting import wait_until
from fleet_testkit.worker_process import WorkerProcess

RETRY = {"max_attempts": 3, "base_seconds": 0.2, "cap_seconds": 0.5}


def submit_script(stack: Fleet, marks: Path, script: list[str], *, tag: str) -> str:
    params = {"marks": str(marks), "script": script}
    answer = stack.client.post("/runs", json={"flow_name": "scripted", "tag": tag, "params": params, "retry": RETRY})
    answer.raise_for_status()
    run_id: str = answer.json()["run_id"]
    return run_id


def attempts_of(stack: Fleet, run_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = stack.client.get(f"/runs/{run_id}/attempts").json()
    return answer


def test_a_flow_that_fails_twice_is_complete_at_its_third_attempt(
    stack: Fleet, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    with WorkerProcess(stack.nats_url, tmp_path, "patient", tag="flaky", flows_dir=flows_dir):
        run_id = submit_script(stack, marks, ["fail", "fail", "fine"], tag="flaky")
        [ended] = wait_ended(stack.client, [run_id])
    assert (ended["status"], ended["attempt"], ended["failures"], ended["result"]) == ("COMPLETED", 3, 2, "fine")
    assert len(marks.read_text().split()) == 3
    recorded = attempts_of(stack, run_id)
    assert [(a["attempt"], a["outcome"]) for a in recorded["attempts"]] == [
        *((1, "failed"), (2, "failed"), (3, "completed")),
    ]
    assert [decision["kind"] for decision in recorded["decisions"]] == ["retry", "retry"]
    # A failure that was made good leaves nothing to work on.
    assert stack.client.get("/dlq", params={"run_id": run_id}).json()["items"] == []


def test_a_worker_killed_between_two_failures_does_not_use_up_the_retries(
    stack: Fleet, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    victim = WorkerProcess(stack.nats_url, tmp_path, "victim", tag="fatal", flows_dir=flows_dir)
    with victim:
        run_id = submit_script(stack, marks, ["fail", "hang", "fail", "fine"], tag="fatal")
        wait_until(lambda: len(marks.read_text().split()) == 2, within=30, what="the second attempt")
        victim.kill()
    with WorkerProcess(stack.nats_url, tmp_path, "heir-of-victim", tag="fatal", flows_dir=flows_dir):
        [ended] = wait_ended(stack.client, [run_id], within=60)
    assert (ended["status"], ended["attempt"], ended["failures"]) == (RunStatus.COMPLETED, 4, 2)
    recorded = attempts_of(stack, run_id)
    assert [(a["outcome"], a["worker_id"]) for a in recorded["attempts"]] == [
        ("failed", "victim"),
        ("interrupted", "victim"),
        ("failed", "heir-of-victim"),
        ("completed", "heir-of-victim"),
    ]
    assert [decision["kind"] for decision in recorded["decisions"]] == ["retry", "hand_over", "retry"]

"""Dead letters through the gateway: what failed is found, tried again once its cause is gone, or deleted."""

import uuid
from pathlib import Path
from typing import Any

import httpx

from fleet_contracts.status import RunStatus
from fleet_testkit.fleet import Fleet
from fleet_testkit.log_lines import log_lines
from fleet_testkit.runs import submit, wait_ended, wait_status
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire
from fleet_testkit.worker_process import WorkerProcess


def letters(client: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    answer = client.get("/dlq", params=query)
    assert answer.status_code == httpx.codes.OK, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def wait_letters(client: httpx.Client, count: int, **query: Any) -> list[dict[str, Any]]:
    wait_until(lambda: len(letters(client, **query)) == count, what=f"{count} letters of {query}")
    return letters(client, **query)


def test_failed_runs_are_tried_again_once_their_cause_is_gone(stack: Fleet, flows_dir: Path, tmp_path: Path) -> None:
    client, marks = stack.client, tmp_path / "missing" / "marks"
    with WorkerProcess(stack.nats_url, tmp_path, "repaired", tag="repaired", flows_dir=flows_dir):
        run_ids = [submit(client, "marked", tag="repaired", marks=str(marks), label=str(i)) for i in range(4)]
        assert {run["status"] for run in wait_ended(client, run_ids)} == {"FAILED"}
        found = wait_letters(client, 4, tag="repaired")
        assert {letter["run_id"] for letter in found} == set(run_ids)
        [kind] = {letter["fingerprint"] for letter in found}
        groups = client.get("/dlq/groups").json()["items"]
        [group] = [group for group in groups if group["fingerprint"] == kind]
        assert (group["total"], group["flow_name"], group["error_type"]) == (4, "marked", "FileNotFoundError")

        marks.parent.mkdir()
        answer = client.post(f"/dlq/{found[0]['id']}/requeue")
        assert (answer.status_code, answer.json()["status"]) == (200, "PENDING")
        again = wait_status(client, found[0]["run_id"], RunStatus.COMPLETED)
        assert (again["attempt"], again["error"]) == (2, None)
        assert [attempt["outcome"] for attempt in again["earlier_attempts"]] == ["failed"]

        body = {"filter": {"fingerprint": kind}, "rate_per_sec": 20}
        done = client.post("/dlq/requeue", json=body).json()
        assert (done["requeued"], done["skipped"], done["remaining"]) == (3, [], 0)
        assert {run["status"] for run in wait_ended(client, run_ids)} == {"COMPLETED"}
    assert sorted(marks.read_text().split()) == ["0", "1", "2", "3"]
    assert letters(client, tag="repaired") == []
    assert len(letters(client, tag="repaired", state="requeued")) == 4
    for status in ("entered", "requeued"):
        lines = log_lines(stack.log("runs-api"), event="dlq.transition", status=status, tag="repaired")
        assert [line["meta"]["job_type"] for line in lines] == ["marked"] * 4
    refused = client.post(f"/dlq/{found[1]['id']}/requeue")
    assert (refused.status_code, refused.json()["error"]["meta"]["run_status"]) == (409, "COMPLETED")


def test_a_job_that_is_none_leaves_a_letter_that_can_only_be_deleted(
    stack: Fleet, wire: Wire, flows_dir: Path, tmp_path: Path
) -> None:
    client = stack.client
    with WorkerProcess(stack.nats_url, tmp_path, "nonsense", tag="nonsense", flows_dir=flows_dir):
        wire.publish_job(f"no json {uuid.uuid4().hex}".encode(), tag="nonsense")
        [letter] = wait_letters(client, 1, tag="nonsense")
    assert (letter["reason"], letter["run_id"], letter["worker_id"]) == ("invalid_job", None, "nonsense")
    refused = client.post(f"/dlq/{letter['id']}/requeue")
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        "This letter belongs to no run; submit a new run.",
    )
    assert client.delete("/dlq").status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert client.delete("/dlq", params={"tag": "nonsense"}).json()["deleted"] == 1
    assert letters(client, tag="nonsense", state="all") == []
    assert client.get(f"/dlq/{letter['id']}").status_code == httpx.codes.NOT_FOUND
    # The stream keeps what was published there; only the ledger's letter is gone.
    assert len(wire.dead_letters("nonsense")) == 1

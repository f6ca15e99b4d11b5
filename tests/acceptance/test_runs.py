"""A run travels all the way: submitted through the gateway, executed by a worker, looked at through the gateway."""

import json
import uuid
from itertools import pairwise
from pathlib import Path

import pytest

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.events import EventKind
from fleet_contracts.names import ConsumerDefaults, WireNames
from fleet_contracts.status import RunStatus
from fleet_testkit.fleet import Fleet
from fleet_testkit.nats_resources import make_queues
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire
from fleet_testkit.worker_process import WorkerProcess

# Appendix F, with what clients see of it.
REQUIRED = {"run_id", "flow_name", "status", "params", "tasks", "heartbeat_at", "updated_at"}
RECOMMENDED = {
    *("tag", "tags", "worker_id", "task_records", "task_records_truncated", "start_time", "end_time", "error"),
    *("cancel_requested_at", "cancel_requested_by"),
}


def run(stack: Fleet, flow_name: str, **params: object) -> dict:
    [ended] = wait_ended(stack.client, [submit(stack.client, flow_name, **params)])
    return ended


@pytest.mark.also_composed("a worker's NATS user and its flows come from volumes")
def test_a_submitted_run_completes_and_shows_every_field_of_the_spec(stack: Fleet, wire: Wire) -> None:
    ended = run(stack, "hello", name="Ada")
    assert ended.keys() >= REQUIRED | RECOMMENDED
    assert json.loads(wire.snapshot(ended["run_id"])[0]).keys() >= REQUIRED | RECOMMENDED

    assert ended["status"] == "COMPLETED"
    assert ended["flow_name"] == "hello"
    assert ended["params"] == {"name": "Ada"}
    assert ended["tasks"] == {"choose": "SUCCEEDED", "greet": "SUCCEEDED"}
    assert ended["task_records"]["greet"]["output"] == "Hello, Ada!"
    assert ended["task_records_truncated"] is False
    assert (ended["tag"], ended["tags"]) == ("default", ["default"])
    assert ended["submitted_at"] <= ended["start_time"] <= ended["end_time"] <= ended["updated_at"]
    assert (ended["error"], ended["reason"], ended["attempt"]) == (None, None, 1)
    assert ended["worker_alive"] is True
    assert ended["worker_id"] in {worker["worker_id"] for worker in stack.client.get("/workers").json()}


@pytest.mark.also_composed("PostgreSQL")
def test_an_ended_run_is_listed_and_its_tasks_can_be_read(stack: Fleet) -> None:
    run_id = run(stack, "hello", name="Grace")["run_id"]
    wait_until(
        lambda: (
            (newest := stack.client.get("/runs", params={"limit": 1}).json()[0])["run_id"] == run_id
            and newest["status"] == "COMPLETED"
        ),
        what="the run listed as COMPLETED",
    )
    tasks = stack.client.get(f"/runs/{run_id}/tasks").json()
    assert tasks["tasks"] == {"choose": "SUCCEEDED", "greet": "SUCCEEDED"}
    assert tasks["task_records"]["greet"]["output"] == "Hello, Grace!"


def test_parallel_tasks_overlap_in_time(stack: Fleet) -> None:
    records = run(stack, "dag", seconds=0.5)["task_records"]
    spans = [records[name] for name in ("measure_east", "measure_north", "measure_west")]
    assert max(span["started_at"] for span in spans) < min(span["ended_at"] for span in spans)
    assert records["compare"]["output"]["overlap_seconds"] > 0


def test_the_failing_example_fails_with_its_error_and_a_dead_letter(stack: Fleet, wire: Wire) -> None:
    ended = run(stack, "failing", message="as it should")
    assert ended["status"] == "FAILED"
    assert ended["error"] == "ValueError: as it should"
    assert ended["tasks"] == {"prepare": "SUCCEEDED", "explode": "FAILED"}
    [letter] = [letter for letter in wire.dead_letters("default") if letter.run_id == ended["run_id"]]
    assert letter.reason == DeadLetterReason.EXECUTION_ERROR
    assert letter.error == ended["error"]


@pytest.mark.parametrize(
    ("items", "taken", "left_out", "sent"),
    [
        (["a cup", "a spoon"], "book_bicycle", "book_van", "2 parcels sent by bicycle"),
        (["a", "b", "c", "d"], "book_van", "book_bicycle", "4 parcels sent by van"),
    ],
)
def test_the_branching_example_takes_one_branch(
    stack: Fleet, wire: Wire, items: list[str], taken: str, left_out: str, sent: str
) -> None:
    ended = run(stack, "branching", items=items)
    assert ended["status"] == "COMPLETED"
    assert ended["tasks"][taken] == "SUCCEEDED"
    assert ended["tasks"][left_out] != "SUCCEEDED"
    assert ended["task_records"]["send"]["output"] == sent
    packed = [line for line in output_lines(wire, ended["run_id"]) if line.startswith("packed")]
    assert packed == [f"packed {item} ({number} of {len(items)})" for number, item in enumerate(items, 1)]


def test_the_long_example_sends_heartbeats_while_it_works(stack: Fleet, wire: Wire) -> None:
    run_id = submit(stack.client, "long", seconds=2.4)
    wait_until(lambda: "step 1 of 12" in output_lines(wire, run_id), what="the first output")
    assert stack.client.get(f"/runs/{run_id}").json()["status"] == "RUNNING"
    beats: set[float] = set()

    def look() -> bool:
        snapshot = stack.client.get(f"/runs/{run_id}").json()
        if snapshot["status"] == "RUNNING":
            beats.add(snapshot["heartbeat_at"])
        return RunStatus(snapshot["status"]).is_terminal

    wait_until(look, within=20, what="the end of the long run")
    [ended] = wait_ended(stack.client, [run_id])
    assert ended["status"] == "COMPLETED"
    assert ended["task_records"]["report"]["output"] == "12 steps done"
    assert len(beats) >= 2
    assert output_lines(wire, run_id) == [f"step {number} of 12" for number in range(1, 13)]


def output_lines(wire: Wire, run_id: str) -> list[str]:
    """The output of a run, line by line."""
    batches = wire.events(run_id)
    assert [batch.batch for batch in batches] == list(range(len(batches)))
    events = [event for batch in batches for event in batch.events]
    assert all(before.at <= after.at for before, after in pairwise(e for e in events if e.kind is EventKind.RUN))
    return "".join(event.text or "" for event in events if event.kind is EventKind.LOG).splitlines()


def test_two_runs_at_once_keep_their_output_apart(stack: Fleet, wire: Wire, flows_dir: Path, tmp_path: Path) -> None:
    with WorkerProcess(stack.nats_url, tmp_path, "talkers", tag="talk", flows_dir=flows_dir, slots=2):
        runs = {
            name: submit(stack.client, "talking", tag="talk", folder=str(tmp_path), name=name, other=other)
            for name, other in (("ada", "grace"), ("grace", "ada"))
        }
        ended = wait_ended(stack.client, runs.values())
    assert [snapshot["status"] for snapshot in ended] == ["COMPLETED", "COMPLETED"]
    first, second = ended
    assert max(first["start_time"], second["start_time"]) < min(first["end_time"], second["end_time"])
    for name, run_id in runs.items():
        assert output_lines(wire, run_id) == [f"{name} {number}" for number in range(50)]


def test_a_task_that_holds_the_gil_for_longer_than_ack_wait_is_delivered_once(
    stack: Fleet, wire: Wire, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    short = ConsumerDefaults(consumer_ack_wait_sec=2)
    wire.use(lambda client: make_queues(client.jetstream(), WireNames(), tags=["busy"], consumers=short))
    with WorkerProcess(stack.nats_url, tmp_path, "busy", tag="busy", flows_dir=flows_dir, slots=2):
        run_id = submit(stack.client, "gil_bound", tag="busy", marks=str(marks), label="once", seconds=5)
        [ended] = wait_ended(stack.client, [run_id])
        wait_until(lambda: wire.queued("busy") == 0, what="the job acked")
    consumer = wire.consumer("busy")
    assert consumer.config.ack_wait == 2
    assert ended["end_time"] - ended["start_time"] > 2 * consumer.config.ack_wait
    assert (ended["status"], ended["attempt"]) == ("COMPLETED", 1)
    assert consumer.delivered.consumer_seq == 1
    assert marks.read_text().splitlines() == ["once"]
    assert wire.dead_letters("busy") == []


@pytest.mark.also_composed("PostgreSQL")
def test_a_whole_number_of_any_size_reaches_the_flow(stack: Fleet) -> None:
    wanted = {"flow_name": "hello", "params": {"name": 2**80}}
    key = {"Idempotency-Key": f"tests:{uuid.uuid4().hex}:1760000000000"}
    first, again = (stack.client.post("/runs", json=wanted, headers=key) for _ in range(2))
    assert first.json()["run_id"] == again.json()["run_id"]
    [ended] = wait_ended(stack.client, [first.json()["run_id"]])
    assert ended["task_records"]["greet"]["output"] == f"Hello, {2**80}!"


@pytest.mark.also_composed("PostgreSQL")
def test_an_output_that_json_cannot_hold_is_shown_as_far_as_it_can_be(
    stack: Fleet, flows_dir: Path, tmp_path: Path
) -> None:
    with WorkerProcess(stack.nats_url, tmp_path, "speechless", tag="speechless", flows_dir=flows_dir):
        run_id = submit(stack.client, "speechless", tag="speechless")
        [ended] = wait_ended(stack.client, [run_id])
    assert (ended["status"], ended["attempt"]) == ("COMPLETED", 1)
    shown = stack.client.get(f"/runs/{run_id}/result").json()
    odd = shown["outputs"]["unspeakable"]
    assert odd["lock"] == "<_thread.lock: it has no JSON form>"
    assert (odd["half"], odd["nothing"], odd["('a', 1)"]) == ("\\udcff", None, str(2**80))
    assert "the end" in str(shown["result"])
    # The ledger can read it, too.
    wait_until(
        lambda: stack.client.get("/runs", params={"q": run_id}).json()[0]["status"] == "COMPLETED",
        what="the run listed as COMPLETED",
    )


@pytest.mark.also_composed("PostgreSQL")
def test_an_error_that_the_database_cannot_hold_is_shown_as_far_as_it_can_be(
    stack: Fleet, flows_dir: Path, tmp_path: Path
) -> None:
    body = {"flow_name": "choking", "tag": "choking", "retry": {"max_attempts": 2, "base_seconds": 0}}
    with WorkerProcess(stack.nats_url, tmp_path, "choking", tag="choking", flows_dir=flows_dir):
        run_id = stack.client.post("/runs", json=body).json()["run_id"]
        [ended] = wait_ended(stack.client, [run_id])
    assert (ended["status"], ended["attempt"]) == ("FAILED", 2)
    wait_until(
        lambda: stack.client.get("/runs", params={"q": run_id}).json()[0]["status"] == "FAILED",
        what="the run listed as FAILED",
    )
    [first, _] = stack.client.get(f"/runs/{run_id}/attempts").json()["attempts"]
    assert "binary" in first["error"]


@pytest.mark.also_composed("logs go to the engine")
def test_every_line_that_services_and_worker_log_is_json(stack: Fleet) -> None:
    run(stack, "dag", seconds=0.3)
    for part in ("auth", "runs-api", "workers-api", "wheels-api", "worker-1"):
        for line in stack.log(part).splitlines():
            assert json.loads(line).keys() >= {"ts", "level", "message", "event", "component"}, f"{part}: {line}"

"""Jobs that cannot be brought to a good end (appendix E), seen from outside."""

import json
import uuid
from pathlib import Path

import nats.errors
from nats.aio.client import Client

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.status import RunStatus
from fleet_testkit.fleet import Fleet
from fleet_testkit.log_lines import log_lines
from fleet_testkit.runs import submit, wait_ended, wait_status
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire
from fleet_testkit.worker_process import WorkerProcess

TERMINATED = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.PYOCO_WORK.pyoco_workers_default"


def test_a_job_that_is_no_json_is_terminated_and_gets_a_dead_letter(stack: Fleet, wire: Wire) -> None:
    nonsense = f"no json at all {uuid.uuid4().hex}".encode()

    async def publish_and_hear(client: Client) -> dict:
        advisories = await client.subscribe(TERMINATED)
        ack = await client.jetstream().publish("pyoco.work.default", nonsense)
        while True:
            advisory = json.loads((await advisories.next_msg(timeout=30)).data)
            if advisory["stream_seq"] == ack.seq:
                return advisory

    before = len(wire.dead_letters("default"))
    assert wire.use(publish_and_hear)["deliveries"] == 1
    [letter] = wire.dead_letters("default")[before:]
    assert letter.reason == DeadLetterReason.INVALID_JOB
    assert letter.subject == "pyoco.work.default"
    assert letter.run_id is None
    assert letter.error is not None
    assert "Job" in letter.error
    assert wire.queued("default") == 0


def test_a_run_of_an_unknown_flow_fails_and_its_job_is_gone(stack: Fleet, wire: Wire) -> None:
    [ended] = wait_ended(stack.client, [submit(stack.client, "no-such-flow")])
    assert (ended["status"], ended["reason"]) == ("FAILED", "flow_not_found")
    assert "no-such-flow" in ended["error"]
    wait_until(lambda: wire.queued("default") == 0, what="the job acked")
    [letter] = [letter for letter in wire.dead_letters("default") if letter.run_id == ended["run_id"]]
    assert letter.reason == DeadLetterReason.FLOW_NOT_FOUND
    assert letter.flow_name == "no-such-flow"


def test_a_run_that_raises_fails_and_the_log_has_the_traceback(stack: Fleet, wire: Wire) -> None:
    [ended] = wait_ended(stack.client, [submit(stack.client, "failing", message="look here")])
    assert (ended["status"], ended["reason"]) == ("FAILED", "execution_error")
    wait_until(lambda: wire.queued("default") == 0, what="the job acked")
    [letter] = [letter for letter in wire.dead_letters("default") if letter.run_id == ended["run_id"]]
    assert letter.reason == DeadLetterReason.EXECUTION_ERROR
    assert letter.num_delivered == 1
    [line] = log_lines(stack.log("worker-1"), run_id=ended["run_id"], err_id="ERR-PYOCO-0007")
    assert (line["level"], line["exc_type"]) == ("ERROR", "ValueError")
    assert line["exc_message"] == "look here"
    assert "in explode" in line["exc_traceback"]
    assert "look here" in ended["error"]


def test_a_claim_that_kv_refuses_is_tried_again_later(
    stack: Fleet, wire: Wire, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    run_id = submit(stack.client, "marked", tag="refused", marks=str(marks), label="once")
    worker = WorkerProcess(
        stack.nats_url, tmp_path, "patient", tag="refused", flows_dir=flows_dir, PYOCO_NAK_DELAY_SEC="0.2"
    )
    with worker:
        with wire.refusing_snapshots():
            wait_until(lambda: delivered(wire, "refused") >= 2, within=30, what="the job delivered again")
            assert marks.read_text() == ""
        [ended] = wait_ended(stack.client, [run_id])
    assert (ended["status"], ended["attempt"]) == ("COMPLETED", 1)
    assert marks.read_text().splitlines() == ["once"]
    assert wire.dead_letters("refused") == []


def test_an_end_that_kv_refuses_is_reached_by_running_again(
    stack: Fleet, wire: Wire, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    with WorkerProcess(
        stack.nats_url, tmp_path, "unended-worker", tag="unended", flows_dir=flows_dir, PYOCO_NAK_DELAY_SEC="0.2"
    ):
        run_id = submit(stack.client, "marked", tag="unended", marks=str(marks), label="again", seconds=1.0)
        wait_status(stack.client, run_id, RunStatus.RUNNING)
        with wire.refusing_snapshots():
            wait_until(lambda: delivered(wire, "unended") >= 2, within=30, what="the job delivered again")
        [ended] = wait_ended(stack.client, [run_id])
    assert ended["status"] == "COMPLETED"
    assert ended["attempt"] == 2
    assert marks.read_text().splitlines() == ["again"] * 2
    assert wire.dead_letters("unended") == []


def delivered(wire: Wire, tag: str) -> int:
    """How often jobs of a tag were handed to a worker, redeliveries included."""
    try:
        return wire.consumer(tag).delivered.consumer_seq or 0
    except nats.errors.Error:
        return 0  # the consumer is not made yet

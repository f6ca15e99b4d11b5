"""A worker is lost in mid-run: another takes over soon, and what the lost one still does changes nothing."""

import json
import time
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.errors import KeyWrongLastSequenceError

from fleet_contracts.status import RunStatus
from fleet_testkit.runs import read, submit, wait_ended, wait_status
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire
from fleet_testkit.worker_process import WorkerProcess

# AckWait is 30 s: waiting for it is no takeover.
SOON_SECONDS = 15.0


@pytest.mark.alone
def test_another_worker_takes_over_from_a_killed_one(
    stack: Stack,
    wire: Wire,
    flows_dir: Path,
    tmp_path: Path,
    marks: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = WorkerProcess(stack.nats_url, tmp_path, "mortal", tag="mortal", flows_dir=flows_dir)
    second = WorkerProcess(stack.nats_url, tmp_path, "heir", tag="mortal", flows_dir=flows_dir)
    with first, second:
        for worker in (first, second):
            worker.wait_registered(stack.client)
        run_id = submit(stack.client, "marked", tag="mortal", marks=str(marks), label="work", seconds=4.0)
        held = wait_status(stack.client, run_id, RunStatus.RUNNING)
        wait_until(lambda: marks.read_text().count("work") == 1, what="the run executed")
        holder, heir = (first, second) if held["worker_id"] == first.worker_id else (second, first)
        holder.kill()
        last_words, revision = wire.snapshot(run_id)

        killed_at = time.monotonic()
        wait_until(lambda: read(stack.client, run_id)["attempt"] == 2, within=SOON_SECONDS, what="the takeover")
        took_seconds = time.monotonic() - killed_at
        wait_until(lambda: marks.read_text().count("work") == 2, what="the run executed again")

        late = {**json.loads(last_words), "status": "COMPLETED", "worker_id": holder.worker_id}
        with pytest.raises(KeyWrongLastSequenceError):
            wire.write_snapshot(run_id, json.dumps(late).encode(), revision=revision)

        [ended] = wait_ended(stack.client, [run_id])
        wait_until(lambda: wire.queued("mortal") == 0, what="the job acked")
    with capsys.disabled():
        print(f"\n[figures] takeover from a killed worker after {took_seconds:.1f} s (AckWait 30 s)")
    assert (ended["status"], ended["attempt"], ended["interruptions"]) == ("COMPLETED", 2, 1)
    assert ended["worker_id"] == heir.worker_id


def test_a_worker_that_wakes_up_after_it_was_replaced_writes_nothing(
    stack: Stack, wire: Wire, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    sleeper = WorkerProcess(stack.nats_url, tmp_path, "sleeper", tag="nap", flows_dir=flows_dir)
    heir = WorkerProcess(stack.nats_url, tmp_path, "waking", tag="nap", flows_dir=flows_dir)
    with sleeper:
        run_id = submit(stack.client, "marked", tag="nap", marks=str(marks), label="work", seconds=1.0)
        wait_until(lambda: marks.read_text().count("work") == 1, within=30, what="the run executed")
        # The agent stands still; its runner finishes the run and nobody hears it.
        sleeper.pause()
        with heir:
            [ended] = wait_ended(stack.client, [run_id])
            _, revision = wire.snapshot(run_id)
            sleeper.resume()
            wait_until(lambda: "the claim was lost" in sleeper.log, what="the sleeper noticing")
    assert (ended["status"], ended["attempt"], ended["worker_id"]) == ("COMPLETED", 2, heir.worker_id)
    assert wire.snapshot(run_id)[1] == revision
    assert wire.queued("nap") == 0


def test_a_job_delivered_again_after_its_run_completed_is_only_acked(
    stack: Stack, wire: Wire, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    with WorkerProcess(stack.nats_url, tmp_path, "once", tag="again", flows_dir=flows_dir):
        run_id = submit(stack.client, "marked", tag="again", marks=str(marks), label="work")
        [ended] = wait_ended(stack.client, [run_id])
        revision = wire.snapshot(run_id)[1]
        job = {"run_id": run_id, "flow_name": "marked", "tag": "again", "params": ended["params"], "submitted_at": 0}
        for _ in range(3):
            wire.publish_job(json.dumps(job).encode(), tag="again")
        wait_until(lambda: wire.queued("again") == 0, what="the repeated jobs acked")
    assert marks.read_text().splitlines() == ["work"]
    assert wire.snapshot(run_id)[1] == revision
    assert wire.dead_letters("again") == []


def test_a_run_completed_but_not_acked_is_not_executed_again(
    stack: Stack, wire: Wire, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    run_id = submit(stack.client, "marked", tag="unacked", marks=str(marks), label="work")

    async def complete_and_die(client: Client) -> None:
        js = client.jetstream()
        jobs = await js.pull_subscribe("pyoco.work.unacked", durable="pyoco_workers_unacked", stream="PYOCO_WORK")
        [message] = await jobs.fetch(1, timeout=30)
        snapshot = {**json.loads(message.data), "status": "COMPLETED", "tasks": {}}
        snapshot |= {"heartbeat_at": time.time(), "updated_at": time.time(), "worker_id": "gone", "attempt": 1}
        await (await js.key_value("pyoco_runs")).put(run_id, json.dumps(snapshot).encode())
        # As if AckWait were over.
        await message.nak()

    wire.use(complete_and_die)
    assert wire.queued("unacked") == 1
    with WorkerProcess(stack.nats_url, tmp_path, "tidy", tag="unacked", flows_dir=flows_dir):
        wait_until(lambda: wire.queued("unacked") == 0, within=30, what="the job acked")
    assert marks.read_text() == ""
    assert read(stack.client, run_id)["worker_id"] == "gone"

"""A peer that speaks the seed spec and nothing more works with us unchanged."""

import json
import time

from nats.aio.client import Client

from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import read, submit
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire


def seen(stack: Fleet, run_id: str, status: str) -> bool:
    """Shown and listed in this state."""
    listed = stack.client.get("/runs", params={"status": status, "tag": "peer"}).json()
    return read(stack.client, run_id)["status"] == status and run_id in {run["run_id"] for run in listed}


def completed_total(stack: Fleet) -> float:
    lines = stack.client.get("/metrics").text.splitlines()
    [line] = [line for line in lines if line.startswith('pyoco_runs_total{status="COMPLETED"}')]
    return float(line.rpartition(" ")[2])


def test_a_run_executed_by_a_worker_of_the_seed_spec_is_shown_listed_and_counted(stack: Fleet, wire: Wire) -> None:
    before = completed_total(stack)
    run_id = submit(stack.client, "of-the-peer", tag="peer", x=1)

    async def work_as_a_peer(client: Client) -> None:
        js = client.jetstream()
        jobs = await js.pull_subscribe("pyoco.work.peer", durable="pyoco_workers_peer", stream="PYOCO_WORK")
        [message] = await jobs.fetch(1, timeout=30)
        job = json.loads(message.data)
        assert job.keys() >= {"run_id", "flow_name", "tag", "tags", "params", "submitted_at"}
        assert (job["run_id"], job["flow_name"], job["params"]) == (run_id, "of-the-peer", {"x": 1})
        runs = await js.key_value("pyoco_runs")
        snapshot = {
            **{name: job[name] for name in ("run_id", "flow_name", "params", "tag", "tags")},
            **{"status": "RUNNING", "tasks": {"work": "RUNNING"}, "worker_id": "peer-1"},
            **{"heartbeat_at": time.time(), "updated_at": time.time(), "start_time": time.time(), "error": None},
        }
        await runs.put(run_id, json.dumps(snapshot).encode())
        wait_until(lambda: seen(stack, run_id, "RUNNING"), what="the peer's run seen RUNNING")
        snapshot |= {"status": "COMPLETED", "tasks": {"work": "SUCCEEDED"}, "end_time": time.time()}
        await runs.put(run_id, json.dumps(snapshot).encode())
        await message.ack_sync()

    wire.use(work_as_a_peer)
    wait_until(lambda: seen(stack, run_id, "COMPLETED"), what="the peer's run seen COMPLETED")
    shown = read(stack.client, run_id)
    assert (shown["tasks"], shown["worker_id"], shown["error"]) == ({"work": "SUCCEEDED"}, "peer-1", None)
    assert completed_total(stack) == before + 1
    assert wire.queued("peer") == 0


def test_the_durable_that_peers_share_is_made_as_the_spec_says(stack: Fleet, wire: Wire) -> None:
    consumer = wire.consumer("default")
    assert consumer.name == "pyoco_workers_default"
    assert consumer.config.filter_subject == "pyoco.work.default"
    assert (consumer.config.ack_wait, consumer.config.max_deliver, consumer.config.max_ack_pending) == (30, 20, 200)

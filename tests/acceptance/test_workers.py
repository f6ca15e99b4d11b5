"""Operators and their workers through the gateway: hide, drain, watch; and one living worker per name."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from fleet_contracts.status import RunStatus
from fleet_testkit.fleet import Fleet, MakesFleets
from fleet_testkit.runs import read, submit, wait_ended, wait_status
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire
from fleet_testkit.worker_process import WorkerProcess

pytestmark = pytest.mark.long

Worker = dict[str, Any]


class Crew:
    """Workers of a tag of their own on the shared stack."""

    def __init__(self, stack: Fleet, folder: Path, flows_dir: Path, tag: str) -> None:
        self.stack = stack
        self.client = stack.client
        self.tag = tag
        self._folder = folder
        self._flows_dir = flows_dir

    def worker(self, worker_id: str, **env: str) -> WorkerProcess:
        return WorkerProcess(
            self.stack.nats_url, self._folder, worker_id, tag=self.tag, flows_dir=self._flows_dir, **env
        )

    def show(self, worker_id: str) -> Worker:
        answer = self.client.get(f"/workers/{worker_id}")
        assert answer.status_code == 200, answer.text
        worker: Worker = answer.json()
        return worker

    def listed(self, **query: str) -> set[str]:
        workers = self.client.get("/workers", params={"limit": "500", **query}).json()
        return {worker["worker_id"] for worker in workers if self.tag in worker["tags"]}

    def drain(self, worker_id: str) -> None:
        assert self.client.post(f"/workers/{worker_id}/drain").json()["draining"] is True

    def resume(self, worker_id: str) -> None:
        assert self.client.post(f"/workers/{worker_id}/resume").json()["draining"] is False

    def submit(self, marks: Path, label: str, *, seconds: float = 0.0) -> str:
        return submit(self.client, "marked", tag=self.tag, marks=str(marks), label=label, seconds=seconds)


@pytest.fixture
def crew(stack: Fleet, tmp_path: Path, flows_dir: Path, request: pytest.FixtureRequest) -> Crew:
    return Crew(stack, tmp_path, flows_dir, tag=f"crew-{abs(hash(request.node.name)) % 10**8}")


def test_a_hidden_worker_stays_hidden_when_it_starts_again(crew: Crew) -> None:
    name = f"{crew.tag}-1"
    with crew.worker(name) as worker:
        worker.wait_registered(crew.client)
        answer = crew.client.patch(f"/workers/{name}", json={"hidden": True})
        assert (answer.status_code, answer.json()["hidden"]) == (200, True)
        assert crew.listed() == set()
        worker.kill()
        before = crew.show(name)["instance_id"]
        worker.start()
        wait_until(lambda: crew.show(name)["instance_id"] != before, within=30, what="the worker's next life")
        assert crew.listed() == set()
        assert crew.listed(include_hidden="true") == {name}
        assert crew.client.patch(f"/workers/{name}", json={"hidden": False}).status_code == 200
        assert crew.listed() == {name}
    assert crew.listed() == set()
    assert crew.listed(state="STOPPED_GRACEFUL", scope="all") == {name}


def test_a_worker_is_shown_with_what_it_does_and_where(crew: Crew, marks: Path) -> None:
    name = f"{crew.tag}-1"
    with crew.worker(name) as worker:
        worker.wait_registered(crew.client)
        run_id = crew.submit(marks, "one", seconds=2)
        wait_until(lambda: crew.show(name)["busy_slots"] == 1, what="a busy slot")
        busy = crew.show(name)
        assert (busy["state"], busy["slots"], busy["current_run_ids"]) == ("RUNNING", 1, [run_id])
        assert "marked" in busy["flows"]
        assert busy["machine"]["pid"] == worker.pid
        assert {"python_version", "pyoco_version", "fleet_version", "host", "memory_bytes", "cpu_count"} <= {
            field for field, value in busy["machine"].items() if value
        }
        wait_ended(crew.client, [run_id])
        wait_until(lambda: crew.show(name)["last_run_id"] == run_id, what="the last run")
        assert crew.show(name)["busy_slots"] == 0


def test_draining_under_load_loses_no_run_and_the_drained_worker_takes_none_until_it_is_resumed(
    crew: Crew, marks: Path
) -> None:
    first, second = f"{crew.tag}-1", f"{crew.tag}-2"
    with crew.worker(first) as one, crew.worker(second) as two:
        one.wait_registered(crew.client)
        two.wait_registered(crew.client)
        load = [crew.submit(marks, str(number), seconds=0.02) for number in range(200)]
        wait_until(lambda: len(marks.read_text().split()) > 30, what="the load being worked on")
        crew.drain(first)
        wait_until(lambda: crew.show(first)["busy_slots"] == 0, what="the drained worker having finished")
        drained_at = time.time()
        later = [crew.submit(marks, f"later-{number}") for number in range(30)]
        runs = wait_ended(crew.client, load + later, within=60)
        assert {run["status"] for run in runs} == {"COMPLETED"}
        by_first = [run for run in runs if run["worker_id"] == first]
        assert by_first, "it took its share before"
        assert max(run["start_time"] for run in by_first) <= drained_at
        assert {run["worker_id"] for run in runs[200:]} == {second}
        # Each was executed exactly once, by whichever worker.
        wanted = [str(number) for number in range(200)] + [f"later-{number}" for number in range(30)]
        assert sorted(marks.read_text().split()) == sorted(wanted)
        assert (crew.show(first)["state"], crew.show(first)["draining"]) == ("IDLE", True)

        crew.drain(second)
        waiting = crew.submit(marks, "waiting")
        wait_until(
            lambda: "are draining" in read(crew.client, waiting)["waiting_detail"], what="the reason why it waits"
        )
        assert read(crew.client, waiting)["waiting_reason"] == "no_worker"
        crew.resume(first)
        [run] = wait_ended(crew.client, [waiting])
        assert (run["status"], run["worker_id"]) == ("COMPLETED", first)


def test_a_drained_worker_lets_a_run_finish_and_draining_is_kept_over_a_restart(crew: Crew, marks: Path) -> None:
    name = f"{crew.tag}-1"
    with crew.worker(name) as worker:
        worker.wait_registered(crew.client)
        begun = crew.submit(marks, "begun", seconds=1.5)
        wait_status(crew.client, begun, RunStatus.RUNNING)
        crew.drain(name)
        waiting = crew.submit(marks, "waiting")
        [run] = wait_ended(crew.client, [begun])
        assert (run["status"], run["attempt"]) == ("COMPLETED", 1)
        worker.stop()
        assert (crew.show(name)["state"], crew.show(name)["draining"]) == ("STOPPED_GRACEFUL", True)
        worker.start()
        wait_until(lambda: crew.show(name)["state"] == "IDLE", within=30, what="its next life")
        assert read(crew.client, waiting)["status"] == "PENDING"
        crew.resume(name)
        assert wait_ended(crew.client, [waiting])[0]["status"] == "COMPLETED"


def test_a_second_worker_of_the_same_name_is_refused_while_the_first_goes_on(crew: Crew, marks: Path) -> None:
    name = f"{crew.tag}-1"
    with crew.worker(name) as first:
        first.wait_registered(crew.client)
        second = crew.worker(name)
        second.start()
        assert second.wait(within=30) == 1
        assert f"the worker id {name} belongs to another living worker, process {first.pid} on " in second.log
        assert wait_ended(crew.client, [crew.submit(marks, "one")])[0]["worker_id"] == name
        assert crew.show(name)["machine"]["pid"] == first.pid


@pytest.fixture
def hasty(new_fleet: MakesFleets, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet that soon takes a silent worker for gone, and soon forgets it."""
    env = {"PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC": "3", "PYOCO_WORKER_RECORD_TTL_SEC": "6"}
    with new_fleet(tmp_path, with_worker=False, env=env) as fleet:
        yield fleet


def test_a_watcher_sees_a_worker_register_drain_die_and_be_removed(
    hasty: Fleet, tmp_path: Path, flows_dir: Path
) -> None:
    crew = Crew(hasty, tmp_path, flows_dir, "default")
    events: list[tuple[str, str, bool]] = []
    worker = crew.worker("w1", PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC="1")
    with hasty.client.stream("GET", "/workers/events", timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        kind = ""
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            if name != "data" or kind == "heartbeat":
                continue
            data = json.loads(value)
            if kind == "workers":
                assert data["workers"] == []
                worker.start()
            elif kind == "worker":
                shown = data["worker"]
                events.append((kind, shown["state"], shown["draining"]))
                if shown["state"] == "IDLE" and not shown["draining"]:
                    crew.drain("w1")
                elif shown["state"] == "IDLE":
                    worker.kill()
            else:
                events.append((kind, data["worker_id"], False))
                break
    assert events == [
        ("worker", "IDLE", False),
        ("worker", "IDLE", True),
        ("worker", "DISCONNECTED", True),
        ("removed", "w1", False),
    ]
    assert hasty.client.get("/workers/w1").status_code == 404
    # Under its own NATS user the service may do all this.
    wait_until(lambda: records_stored(hasty) == 0, what="nothing left of it in the bucket")
    assert "removing old worker records" not in hasty.log("workers-api")


def records_stored(stack: Fleet) -> int:
    """Also what removed ones leave behind."""

    async def count(client: Client) -> int:
        info = await client.jetstream().stream_info("KV_pyoco_workers")
        return info.state.messages

    return Wire(stack.nats_url).use(count)

"""Reading runs: one from KV, lists and counts from the ledger, and only one's own."""

import time

import pytest

from fleet_contracts.names import HEADER_TENANT_ID
from fleet_contracts.status import RunStatus, TaskStatus, WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_testkit.buckets import Bucket
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest

REQUIRED = {"run_id", "flow_name", "status", "params", "tasks", "heartbeat_at", "updated_at"}


async def finish(service: RunsUnderTest, run_id: str) -> None:
    await service.claim(run_id)
    reported = {"tasks": {"greet": TaskStatus.SUCCEEDED}, "task_records": {"greet": {"output": "hello"}}}
    await service.change(run_id, lambda s: s.model_copy(update=reported).finish(RunStatus.COMPLETED, now=time.time()))
    await eventually(
        lambda: service.rows(f"SELECT 1 FROM runs WHERE run_id = '{run_id}' AND status = 'COMPLETED'"),
        what="the ledger knowing the end",
    )


async def test_a_run_shows_the_required_fields_and_records_only_on_request(service: RunsUnderTest) -> None:
    run_id = await service.submit(params={"name": "Ada"})
    await finish(service, run_id)
    plain = (await service.client.get(f"/runs/{run_id}")).json()
    assert plain.keys() >= REQUIRED
    assert "task_records" not in plain
    assert "ack_subject" not in plain
    for include in ("records", "full", "all"):
        full = (await service.client.get(f"/runs/{run_id}", params={"include": include})).json()
        assert full["task_records"] == {"greet": {"output": "hello"}}
    tasks = (await service.client.get(f"/runs/{run_id}/tasks")).json()
    assert tasks["tasks"] == {"greet": "SUCCEEDED"}
    assert tasks["task_records"] == {"greet": {"output": "hello"}}
    assert tasks["task_records_truncated"] is False


async def test_a_run_that_kv_has_let_go_of_is_read_from_the_ledger(service: RunsUnderTest) -> None:
    run_id = await service.submit(params={"name": "Ada"})
    await finish(service, run_id)
    in_kv = (await service.client.get(f"/runs/{run_id}?include=full")).json()
    await service.runs.delete(run_id)
    assert (await service.client.get(f"/runs/{run_id}?include=full")).json() == in_kv


@pytest.mark.parametrize("run_id", ["nope", "%00", "a.b", "6f1c1a34-8c0e-4e37-9b1b-000000000000", "x" * 300])
async def test_an_unknown_run_is_404_whatever_its_id_looks_like(service: RunsUnderTest, run_id: str) -> None:
    for path in (f"/runs/{run_id}", f"/runs/{run_id}/tasks"):
        answer = await service.client.get(path)
        assert answer.status_code == 404
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0005"


async def test_a_tenant_sees_only_its_own_runs(service: RunsUnderTest) -> None:
    acme = {HEADER_TENANT_ID: "acme", "X-Pyoco-Api-Key-Id": "key-1"}
    answer = await service.client.post("/runs", json={"flow_name": "secret"}, headers=acme)
    run_id = answer.json()["run_id"]
    mine = (await service.client.get(f"/runs/{run_id}", headers=acme)).json()
    assert (mine["tenant_id"], mine["api_key_id"]) == ("acme", "key-1")
    assert [r["run_id"] for r in (await service.client.get("/runs", headers=acme)).json()] == [run_id]
    for headers in ({}, {HEADER_TENANT_ID: "other"}):
        assert (await service.client.get(f"/runs/{run_id}", headers=headers)).status_code == 404
        assert (await service.client.get(f"/runs/{run_id}/tasks", headers=headers)).status_code == 404
        assert (await service.client.get("/runs", headers=headers)).json() == []
    await finish(service, run_id)
    await service.runs.delete(run_id)
    assert (await service.client.get(f"/runs/{run_id}")).status_code == 404
    assert (await service.client.get(f"/runs/{run_id}", headers=acme)).status_code == 200


async def test_lists_are_newest_first_filtered_and_limited(service: RunsUnderTest) -> None:
    first = await service.submit("a", tag="gpu")
    second = await service.submit("b", tags=["nightly"])
    third = await service.submit("a")
    everything = (await service.client.get("/runs")).json()
    assert [r["run_id"] for r in everything] == [third, second, first]
    assert everything[1]["tags"] == ["nightly"]
    assert [r["run_id"] for r in (await service.client.get("/runs?limit=2")).json()] == [third, second]
    assert [r["run_id"] for r in (await service.client.get("/runs?flow=a")).json()] == [third, first]
    assert [r["run_id"] for r in (await service.client.get("/runs?tag=gpu")).json()] == [first]
    assert (await service.client.get("/runs?status=RUNNING")).json() == []
    await finish(service, second)
    [done] = (await service.client.get("/runs?status=COMPLETED")).json()
    assert "task_records" not in done
    [full] = (await service.client.get("/runs?status=COMPLETED&include=full")).json()
    assert full["task_records"] == {"greet": {"output": "hello"}}


async def test_an_empty_system_answers_lists_and_metrics(service: RunsUnderTest) -> None:
    assert (await service.client.get("/runs")).json() == []
    metrics = await service.client.get("/fleet/metrics")
    assert metrics.status_code == 200
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'pyoco_runs_total{status="COMPLETED"} 0.0' in metrics.text


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "status=DONE", "tag=a.b", "include=some"])
async def test_a_bad_list_query_is_refused_with_its_own_id(service: RunsUnderTest, query: str) -> None:
    answer = await service.client.get(f"/runs?{query}")
    assert answer.status_code == 422
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0017"
    assert query.partition("=")[0] in answer.json()["detail"]


async def test_metrics_count_runs_workers_and_dead_letters(service: RunsUnderTest) -> None:
    await service.submit()
    await finish(service, await service.submit())
    now = time.time()
    record = WorkerRecord(
        worker_id="w1", instance_id="i", state=WorkerState.IDLE, last_seen_at=now, last_heartbeat_at=now
    )
    workers = Bucket(service.link, "pyoco_workers")
    await workers.put("w1", record.encode())
    await workers.put("w2", record.model_copy(update={"worker_id": "w2", "last_seen_at": now - 60}).encode())
    await workers.put("broken", b"{}")
    await service.link.publish("pyoco.dlq.default", b"{}")

    async def shown() -> bool:
        lines = (await service.client.get("/fleet/metrics")).text.splitlines()
        wanted = {
            'pyoco_runs_total{status="PENDING"} 1.0',
            'pyoco_runs_total{status="COMPLETED"} 1.0',
            "pyoco_workers_alive_total 1.0",
            "pyoco_dlq_messages_total 1.0",
        }
        return wanted <= set(lines)

    await eventually(shown)


async def test_a_run_shows_whether_its_worker_is_alive(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    now = time.time()
    record = WorkerRecord(
        worker_id="w1", instance_id="i", state=WorkerState.IDLE, last_seen_at=now, last_heartbeat_at=now, tags=["a"]
    )
    await Bucket(service.link, "pyoco_workers").put("w1", record.encode())
    await service.claim(run_id)

    async def shown() -> bool:
        run = (await service.client.get(f"/runs/{run_id}")).json()
        return (run.get("worker_alive"), run.get("worker_tags")) == (True, ["a"])

    await eventually(shown)


async def test_the_answer_to_a_wrong_method_names_the_right_ones(service: RunsUnderTest) -> None:
    answer = await service.client.delete("/runs")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"

"""GET /workers against a real registry bucket."""

import json
import logging
import time

import httpx
import pytest

from fleet_kit.errors import NatsUnavailable
from fleet_testkit.apps import ANONYMOUS, running, until_ready
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.scrapes import Scrape
from fleet_testkit.waiting import eventually
from fleet_workers_api.main import build
from fleet_workers_api.settings import Settings

from .conftest import listed, lose_nats, record, until_listed


async def test_a_worker_is_listed_with_every_field_of_the_contract(
    service: httpx.AsyncClient, bucket: Bucket
) -> None:
    sync = {"enabled": True, "last_result": "ok", "selected_count": 1, "installed_wheels": [{"name": "a.whl"}]}
    await bucket.put("w1", record("w1", state="RUNNING", current_run_id="r1", wheel_sync=sync, secret_plan="x"))
    await until_listed(service, "w1")
    [worker] = (await service.get("/workers")).json()
    assert worker.keys() == {
        "worker_id",
        "instance_id",
        "state",
        "hidden",
        "draining",
        "last_seen_at",
        "last_heartbeat_at",
        "heartbeat_at",
        "tags",
        "slots",
        "current_run_id",
        "current_run_ids",
        "last_run_id",
        "last_run_status",
        "last_run_started_at",
        "last_run_finished_at",
        "stopped_at",
        "stop_reason",
        "wheel_sync",
        "flows_error",
    }
    assert worker["state"] == "RUNNING"
    assert worker["current_run_id"] == "r1"
    assert (worker["wheel_sync"]["last_result"], worker["wheel_sync"]["selected_count"]) == ("ok", 1)
    assert worker["wheel_sync"]["installed_wheels"][0]["name"] == "a.whl"


async def test_the_list_follows_the_registry(service: httpx.AsyncClient, bucket: Bucket) -> None:
    assert await listed(service) == []
    now = time.time()
    await bucket.put("w1", record("w1", last_seen_at=now - 2))
    await bucket.put("w2", record("w2", last_seen_at=now - 1))
    await until_listed(service, "w2", "w1")
    await bucket.put("w1", record("w1", last_seen_at=now))
    await until_listed(service, "w1", "w2")
    await bucket.delete("w2")
    await until_listed(service, "w1")


async def test_the_silent_the_stopped_and_the_hidden_are_found_by_query(
    service: httpx.AsyncClient, bucket: Bucket
) -> None:
    now = time.time()
    await bucket.put("alive", record("alive"))
    await bucket.put("hidden", record("hidden", hidden=True, last_seen_at=now - 5))
    await bucket.put("silent", record("silent", last_seen_at=now - 60))
    await bucket.put("stopped", record("stopped", state="STOPPED_GRACEFUL", last_seen_at=now - 120))
    await until_listed(service, "alive", "hidden", "silent", "stopped")
    assert await listed(service) == ["alive"]
    assert await listed(service, include_hidden="true") == ["alive", "hidden"]
    assert await listed(service, scope="all") == ["alive", "silent", "stopped"]
    assert await listed(service, state="DISCONNECTED", scope="all") == ["silent"]
    assert await listed(service, state="STOPPED_GRACEFUL", scope="all") == ["stopped"]
    assert await listed(service, state="DISCONNECTED") == []
    assert await listed(service, scope="all", limit="2") == ["alive", "silent"]


async def test_records_of_older_workers_are_listed_and_unreadable_ones_left_out_with_a_warning(
    service: httpx.AsyncClient, bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    old = {"worker_id": "old", "heartbeat_at": time.time(), "tags": None}
    with caplog.at_level(logging.WARNING, "fleet_workers_api"):
        await bucket.put("broken", b"{not json")
        await bucket.put("broken", b"{still not json")
        await bucket.put("stranger", json.dumps({"worker_id": "stranger"}).encode())
        await bucket.put("old", json.dumps(old).encode())
        await until_listed(service, "old")
    [worker] = (await service.get("/workers")).json()
    assert (worker["state"], worker["instance_id"], worker["tags"]) == ("IDLE", "", [])
    assert worker["last_seen_at"] == old["heartbeat_at"]
    logged = [
        getattr(line, "worker_id", None) for line in caplog.records if line.name.startswith("fleet_workers_api")
    ]
    assert logged == ["broken", "stranger"]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"scope": "some"}, "query.scope: Input should be 'active' or 'all'"),
        (
            {"state": "ASLEEP"},
            "query.state: Input should be 'RUNNING', 'IDLE', 'STOPPED_GRACEFUL' or 'DISCONNECTED'",
        ),
        ({"include_hidden": "maybe"}, "query.include_hidden: Input should be 'true' or 'false'"),
        ({"limit": "0"}, "query.limit: Input should be greater than or equal to 1"),
        ({"limit": "501"}, "query.limit: Input should be less than or equal to 500"),
    ],
)
async def test_the_refusal_of_a_bad_query_names_what_is_allowed(
    service: httpx.AsyncClient, query: dict[str, str], sentence: str
) -> None:
    answer = await service.get("/workers", params=query)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["code"] == "VALIDATION_ERROR"
    assert error["message"] == sentence
    assert error["meta"]["err_id"] == "ERR-PYOCO-0019"
    assert error["meta"]["msg_id"] == "MSG-PYOCO-0019"


async def test_without_an_identity_nothing_is_answered(service: httpx.AsyncClient) -> None:
    for name in ANONYMOUS:
        del service.headers[name]
    answer = await service.get("/workers")
    assert answer.status_code == 401
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0014"


@pytest.mark.own_nats
async def test_an_outage_is_answered_with_503_and_ends_without_a_restart(
    service: httpx.AsyncClient, bucket: Bucket, nats_server: NatsServer
) -> None:
    await lose_nats(service, bucket, nats_server)
    answer = await service.get("/workers")
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
    assert answer.json()["error"]["meta"]["retryable"] is True
    assert (await service.get("/ready")).status_code == 503
    health = await service.get("/health")
    assert health.status_code == 200
    assert "nats" in health.json()["waiting_for"]
    nats_server.start()
    await until_ready(service)
    assert await listed(service, scope="all") == ["w1"]


@pytest.mark.own_nats
async def test_a_wiped_registry_is_made_anew_and_filled_by_those_who_live(
    service: httpx.AsyncClient, bucket: Bucket, nats_server: NatsServer
) -> None:
    await bucket.put("alive", record("alive"))
    await bucket.put("dead", record("dead", last_seen_at=time.time() - 60))
    await until_listed(service, "alive", "dead")
    nats_server.kill()
    nats_server.wipe()
    nats_server.start()

    async def registers_again() -> bool:
        try:
            await bucket.put("alive", record("alive"))
        except NatsUnavailable:
            return False
        return (await service.get("/workers")).status_code == 200

    await eventually(registers_again, what="NATS being back")
    await until_listed(service, "alive")
    assert (await service.patch("/workers/alive", json={"hidden": True})).status_code == 200
    assert (await service.patch("/workers/dead", json={"hidden": True})).status_code == 404


@pytest.mark.own_nats
async def test_it_starts_while_nats_is_away_and_answers_once_it_comes(nats_server: NatsServer) -> None:
    nats_server.stop()
    async with running(build(Settings(nats_url=nats_server.url))) as client:
        client.headers.update(ANONYMOUS)
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/workers")).status_code == 503
        nats_server.start()
        await until_ready(client)
        assert (await client.get("/workers")).json() == []


@pytest.mark.own_nats
async def test_metrics_count_workers_by_state(
    service: httpx.AsyncClient, bucket: Bucket, nats_server: NatsServer
) -> None:
    await bucket.put("w1", record("w1", slots=2, state="RUNNING"))
    await bucket.put("w2", record("w2", slots=3, draining=True))
    await bucket.put("w3", record("w3", slots=9, last_seen_at=time.time() - 600))
    await until_listed(service, "w2", "w1", "w3")
    seen = Scrape((await service.get("/metrics")).text)
    states = {state: seen.value("pyoco_workers", state=state) for state in ("RUNNING", "IDLE", "DISCONNECTED")}
    assert states == {"RUNNING": 1, "IDLE": 1, "DISCONNECTED": 1}
    assert (seen.value("pyoco_workers_draining"), seen.value("pyoco_workers_slots")) == (1, 5)
    nats_server.kill()

    async def is_unknown() -> bool:
        scrape = Scrape((await service.get("/metrics")).text)
        return scrape.value("pyoco_nats_up") == 0 and scrape.value("pyoco_workers") is None

    await eventually(is_unknown, what="the gauges being empty while NATS is away")


async def test_metrics_and_unknown_paths_have_their_form(service: httpx.AsyncClient) -> None:
    metrics = await service.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'pyoco_build_info{component="workers-api"' in metrics.text
    missing = await service.get("/workers/w1/secrets")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "NOT_FOUND"

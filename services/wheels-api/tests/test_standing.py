"""wheels-api stands: its stores exist, it says how it is, it comes back after an outage."""

from collections.abc import AsyncIterator

import httpx
import nats
import pytest

from fleet_testkit.apps import ANONYMOUS, running, until_ready
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually
from fleet_wheels_api.main import build
from fleet_wheels_api.settings import Settings


@pytest.fixture
async def service(nats_server: NatsServer) -> AsyncIterator[httpx.AsyncClient]:
    async with running(build(Settings(nats_url=nats_server.url))) as client:
        client.headers.update(ANONYMOUS)
        await until_ready(client)
        yield client


def test_the_defaults_are_those_of_the_spec() -> None:
    settings = Settings()
    assert settings.wheel_object_store_bucket == "pyoco_wheels"
    assert settings.wheel_max_bytes == 536870912
    assert settings.wheel_history_kv_bucket == "pyoco_wheel_history"
    assert settings.wheel_history_ttl_sec == 7776000


async def test_it_makes_its_object_store_and_its_history(service: httpx.AsyncClient, nats_server: NatsServer) -> None:
    client = await nats.connect(nats_server.url)
    try:
        js = client.jetstream()
        await js.object_store("pyoco_wheels")
        history = await js.stream_info("KV_pyoco_wheel_history")
        assert history.config.max_age == 7776000
        assert history.config.max_msgs_per_subject == 1
    finally:
        await client.close()


async def test_a_store_that_exists_is_left_as_it_is(nats_server: NatsServer) -> None:
    client = await nats.connect(nats_server.url)
    try:
        js = client.jetstream()
        await js.create_key_value(bucket="pyoco_wheel_history", history=5, ttl=60)
        await js.create_object_store("pyoco_wheels", description="ours")
        async with running(build(Settings(nats_url=nats_server.url))) as service:
            await until_ready(service)
        history = await js.stream_info("KV_pyoco_wheel_history")
        assert (history.config.max_msgs_per_subject, history.config.max_age) == (5, 60)
        assert (await js.stream_info("OBJ_pyoco_wheels")).config.description == "ours"
    finally:
        await client.close()


async def test_it_says_how_it_is(service: httpx.AsyncClient) -> None:
    assert (await service.get("/health")).json() == {"status": "ok", "waiting_for": {}}
    assert (await service.get("/ready")).json() == {"status": "ready", "waiting_for": {}}
    assert 'pyoco_build_info{component="wheels-api"' in (await service.get("/metrics")).text


async def test_unknown_paths_are_answered_in_the_envelope(service: httpx.AsyncClient) -> None:
    answer = await service.get("/nowhere")
    assert answer.status_code == 404
    assert answer.json()["ok"] is False
    assert answer.json()["error"]["code"] == "NOT_FOUND"
    assert answer.json()["error"]["meta"]["request_id"] == answer.headers["x-request-id"]


@pytest.mark.own_nats
async def test_after_nats_lost_its_disk_the_stores_are_made_anew(
    service: httpx.AsyncClient, nats_server: NatsServer
) -> None:
    nats_server.kill()

    async def is_waiting() -> bool:
        return (await service.get("/ready")).status_code == 503

    await eventually(is_waiting, what="waiting for NATS")
    assert (await service.get("/health")).status_code == 200
    nats_server.wipe()
    nats_server.start()
    await until_ready(service)
    client = await nats.connect(nats_server.url)
    try:
        await client.jetstream().object_store("pyoco_wheels")
    finally:
        await client.close()

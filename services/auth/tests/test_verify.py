"""GET /verify: what the gateway is told about a caller."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from fleet_auth.keys import KeyRecord, hash_key
from fleet_auth.main import build
from fleet_auth.settings import Settings
from fleet_kit.kv import Bucket
from fleet_kit.nats import NatsLink
from fleet_kit.resources import ensure_bucket
from fleet_kit.settings import FleetSettings
from fleet_testkit.apps import running, until_ready
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

PEPPER = SecretStr("hush")
KEY = "k-0123456789abcdef"


@pytest.fixture
async def bucket(nats_server: NatsServer) -> AsyncIterator[Bucket]:
    async with NatsLink(FleetSettings(nats_url=nats_server.url), name="test") as link:
        link.after_connect(lambda: ensure_bucket(link.jetstream, "pyoco_auth"))
        await link.wait_ready()
        yield Bucket(link, "pyoco_auth")


@asynccontextmanager
async def auth(server: NatsServer, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with running(build(Settings(nats_url=server.url, **settings))) as client:
        await until_ready(client)
        yield client


async def verify(client: httpx.AsyncClient, key: str | None = None) -> httpx.Response:
    return await client.get("/verify", headers={} if key is None else {"X-API-Key": key})


async def until_status(client: httpx.AsyncClient, key: str, status: int) -> httpx.Response:
    async def answer() -> httpx.Response | None:
        answer = await verify(client, key)
        return answer if answer.status_code == status else None

    found = await eventually(answer, what=f"/verify answering {status}")
    assert found is not None
    return found


def key_record(*, pepper: SecretStr | None = None, **fields: Any) -> bytes:
    known: dict[str, Any] = {
        "key_id": "id1",
        "tenant_id": "acme",
        "key_hash": hash_key(KEY, pepper),
        "scopes": ["runs:read", "runs:write"],
        "created_at": 1.0,
    }
    return KeyRecord(**known | fields).encode()


async def test_while_authentication_is_off_everybody_is_anonymous_and_may_do_everything(
    nats_server: NatsServer,
) -> None:
    async with auth(nats_server) as client:
        for key in (None, "whatever"):
            answer = await verify(client, key)
            assert answer.status_code == 204
            assert answer.headers["X-Pyoco-Tenant-Id"] == "anonymous"
            assert answer.headers["X-Pyoco-Api-Key-Id"] == ""
            assert answer.headers["X-Pyoco-Scopes"].split() == [
                "admin",
                "metrics:read",
                "runs:read",
                "runs:write",
                "wheels:read",
                "wheels:write",
                "workers:read",
                "workers:write",
            ]


async def test_an_open_door_stays_open_while_nats_is_away_but_readiness_tells(nats_server: NatsServer) -> None:
    nats_server.stop()
    async with running(build(Settings(nats_url=nats_server.url))) as client:
        assert (await verify(client)).status_code == 204
        ready = await client.get("/ready")
        assert ready.status_code == 503
        assert "nats" in ready.json()["waiting_for"]


async def test_without_a_key_the_caller_is_asked_for_one(nats_server: NatsServer) -> None:
    async with auth(nats_server, http_auth_mode="api_key") as client:
        for answer in (await verify(client), await verify(client, "")):
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "UNAUTHENTICATED"
            assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0014"


async def test_an_unknown_key_is_refused(nats_server: NatsServer) -> None:
    async with auth(nats_server, http_auth_mode="api_key") as client:
        answer = await verify(client, "never-issued")
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "FORBIDDEN"
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0015"
        assert "never-issued" not in answer.text


@pytest.mark.parametrize("pepper", [None, PEPPER])
async def test_a_key_tells_its_tenant_its_id_and_its_scopes_until_it_is_revoked(
    nats_server: NatsServer, bucket: Bucket, pepper: SecretStr | None
) -> None:
    async with auth(nats_server, http_auth_mode="api_key", auth_pepper=pepper) as client:
        await bucket.put("id1", key_record(pepper=pepper))
        answer = await until_status(client, KEY, 204)
        assert answer.headers["X-Pyoco-Tenant-Id"] == "acme"
        assert answer.headers["X-Pyoco-Api-Key-Id"] == "id1"
        assert answer.headers["X-Pyoco-Scopes"] == "runs:read runs:write"
        assert (await verify(client, KEY + "x")).status_code == 403
        await bucket.put("id1", key_record(pepper=pepper, revoked_at=2.0))
        await until_status(client, KEY, 403)


async def test_a_deleted_or_replaced_record_takes_its_key_away(nats_server: NatsServer, bucket: Bucket) -> None:
    async with auth(nats_server, http_auth_mode="api_key") as client:
        await bucket.put("id1", key_record())
        await until_status(client, KEY, 204)
        await bucket.put("id1", key_record(key_hash=hash_key("another", None)))
        await until_status(client, "another", 204)
        assert (await verify(client, KEY)).status_code == 403
        await bucket.purge("id1")
        await until_status(client, "another", 403)


async def test_a_key_hashed_without_the_pepper_is_unknown_once_there_is_one(
    nats_server: NatsServer, bucket: Bucket
) -> None:
    await bucket.put("id1", key_record(pepper=None))
    async with auth(nats_server, http_auth_mode="api_key", auth_pepper=PEPPER) as client:
        assert (await verify(client, KEY)).status_code == 403


async def test_unreadable_records_and_keys_of_the_anonymous_tenant_open_nothing(
    nats_server: NatsServer, bucket: Bucket
) -> None:
    await bucket.put("id0", b"{not json")
    await bucket.put("id1", key_record().replace(b'"acme"', b'"anonymous"'))
    await bucket.put("id2", key_record(key_id="id2", key_hash=hash_key("other", None)))
    async with auth(nats_server, http_auth_mode="api_key") as client:
        assert (await verify(client, KEY)).status_code == 403
        assert (await verify(client, "other")).status_code == 204


async def test_while_nats_is_away_known_keys_work_and_unknown_ones_cannot_be_judged(
    nats_server: NatsServer, bucket: Bucket
) -> None:
    await bucket.put("id1", key_record())
    async with auth(nats_server, http_auth_mode="api_key") as client:
        assert (await verify(client, KEY)).status_code == 204
        nats_server.kill()
        answer = await until_status(client, "unknown", 503)
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
        assert (await verify(client, KEY)).status_code == 204
        assert (await verify(client)).status_code == 401
        nats_server.start()
        await until_status(client, "unknown", 403)
        assert (await verify(client, KEY)).status_code == 204


async def test_the_key_header_has_the_configured_name(nats_server: NatsServer, bucket: Bucket) -> None:
    await bucket.put("id1", key_record())
    async with auth(nats_server, http_auth_mode="api_key", http_api_key_header="X-Fleet-Key") as client:
        assert (await verify(client, KEY)).status_code == 401
        assert (await client.get("/verify", headers={"X-Fleet-Key": KEY})).status_code == 204


def test_the_pepper_does_not_show() -> None:
    settings = Settings(auth_pepper=PEPPER)
    assert "hush" not in repr(settings)
    assert "hush" not in settings.model_dump_json()

"""Auth in this process with a real NATS, and hands on its bucket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from fleet_auth.main import build
from fleet_auth.records import KeyRecord, hash_key
from fleet_auth.settings import Settings
from fleet_contracts.names import HEADER_API_KEY_ID, HEADER_SCOPES, HEADER_TENANT_ID
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.resources import ensure_bucket
from fleet_kit.settings import FleetSettings
from fleet_testkit.apps import running, until_ready
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

SECRET = "0123456789abcdef0123456789abcdef0123456789a"
KEY = f"pyoco_id1_{SECRET}"
# What the gateway adds to the request of an operator with a key.
OPERATOR = {HEADER_TENANT_ID: "ops", HEADER_API_KEY_ID: "admin1", HEADER_SCOPES: "admin"}


@pytest.fixture
async def bucket(nats_server: NatsServer) -> AsyncIterator[Bucket]:
    async with NatsLink(FleetSettings(nats_url=nats_server.url), name="test") as link:
        link.after_connect(lambda: ensure_bucket(link.jetstream, "pyoco_auth"))
        await link.wait_ready()
        yield Bucket(link, "pyoco_auth")


@asynccontextmanager
async def auth(server: NatsServer, *, mode: str = "api_key", **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    built = build(Settings.model_validate({"nats_url": server.url, "http_auth_mode": mode, **settings}))
    async with running(built) as client:
        await until_ready(client)
        yield client


async def verify(client: httpx.AsyncClient, key: str | None = None) -> httpx.Response:
    return await client.get("/verify", headers={} if key is None else {"X-API-Key": key})


async def until_status(client: httpx.AsyncClient, key: str, status: int, *, within: float = 30.0) -> httpx.Response:
    async def answer() -> httpx.Response | None:
        answer = await verify(client, key)
        return answer if answer.status_code == status else None

    found = await eventually(answer, within=within, what=f"/verify answering {status}")
    assert found is not None
    return found


def key_record(key: str = KEY, *, pepper: SecretStr | None = None, **fields: Any) -> bytes:
    known: dict[str, Any] = {
        "key_id": key.split("_")[1],
        "tenant_id": "acme",
        "key_hash": hash_key(key, pepper),
        "scopes": ["runs:read", "runs:write"],
        "created_at": 1.0,
    }
    return KeyRecord(**known | fields).encode()

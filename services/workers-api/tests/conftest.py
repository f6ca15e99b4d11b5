"""A registry as workers see it, and the service on top of it."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.resources import ensure_bucket
from fleet_kit.settings import FleetSettings
from fleet_testkit.apps import ANONYMOUS, running, until_ready
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually
from fleet_workers_api.main import build
from fleet_workers_api.settings import Settings


@pytest.fixture
async def worker_link(nats_server: NatsServer) -> AsyncIterator[NatsLink]:
    """A worker's connection."""
    async with NatsLink(FleetSettings(nats_url=nats_server.url), name="worker") as link:
        link.after_connect(lambda: ensure_bucket(link.jetstream, "pyoco_workers"))
        await link.wait_ready()
        yield link


@pytest.fixture
def bucket(worker_link: NatsLink) -> Bucket:
    return Bucket(worker_link, "pyoco_workers")


@pytest.fixture
async def service(nats_server: NatsServer) -> AsyncIterator[httpx.AsyncClient]:
    async with running(build(Settings(nats_url=nats_server.url))) as client:
        client.headers.update(ANONYMOUS)
        await until_ready(client)
        yield client


def record(worker_id: str, **fields: Any) -> bytes:
    now = time.time()
    known = {
        "worker_id": worker_id,
        "instance_id": "i1",
        "state": "IDLE",
        "hidden": False,
        "last_seen_at": now,
        "last_heartbeat_at": now,
        "heartbeat_at": now,
        "tags": ["default"],
    }
    return json.dumps(known | fields).encode()


async def listed(service: httpx.AsyncClient, **query: str) -> list[str]:
    answer = await service.get("/workers", params=query)
    assert answer.status_code == 200, answer.text
    return [worker["worker_id"] for worker in answer.json()]


async def until_listed(service: httpx.AsyncClient, *worker_ids: str) -> None:
    async def seen() -> bool:
        return await listed(service, scope="all", include_hidden="true") == list(worker_ids)

    await eventually(seen, what=f"the list being {worker_ids}")


async def lose_nats(service: httpx.AsyncClient, bucket: Bucket, nats_server: NatsServer) -> None:
    """List a worker w1, then kill NATS; return when the service has noticed."""
    await bucket.put("w1", record("w1"))
    await until_listed(service, "w1")
    nats_server.kill()

    async def is_refused() -> bool:
        return (await service.get("/workers")).status_code == 503

    await eventually(is_refused, what="503 while NATS is away")

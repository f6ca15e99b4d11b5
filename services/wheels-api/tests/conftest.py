"""A running wheels-api, and what its tests ask it."""

from collections.abc import AsyncIterator

import httpx
import pytest

from fleet_testkit.apps import ANONYMOUS, running, until_ready
from fleet_testkit.nats_server import NatsServer
from fleet_wheels_api.main import build
from fleet_wheels_api.settings import Settings


@pytest.fixture
async def service(nats_server: NatsServer) -> AsyncIterator[httpx.AsyncClient]:
    async with running(build(Settings(nats_url=nats_server.url, wheel_max_bytes=300_000))) as client:
        client.headers.update(ANONYMOUS)
        await until_ready(client)
        yield client

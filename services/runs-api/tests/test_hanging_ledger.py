"""A database that is there and does not answer: its callers get a 503, and nobody else waits with them."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from fleet_runs_api.ledger.sql import database as database_module
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.scrapes import Scrape
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, runs_running, runs_settings

_MANY = 40


@pytest.fixture
async def service(
    nats_server: NatsServer, tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunsUnderTest]:
    monkeypatch.setattr(database_module, "_READ_SECONDS", 2.0)
    async with runs_running(runs_settings(nats_server, tmp_path, runs_database_url=postgres_url)) as service:
        yield service


async def ledger_up(service: RunsUnderTest) -> float | None:
    return Scrape((await service.client.get("/metrics")).text).value("pyoco_ledger_up")


async def test_lists_are_refused_and_scrapes_are_answered_while_the_ledger_hangs(
    service: RunsUnderTest, postgres_url: str
) -> None:
    run_id = await service.submit()
    await service.until_listed(run_id, status="PENDING")
    with psycopg.connect(postgres_url.replace("+psycopg", "", 1)) as other:
        other.execute("LOCK TABLE runs, run_counts, outbox IN ACCESS EXCLUSIVE MODE")
        asked_at = time.monotonic()
        # More than there are threads, here and in the loop's own pool.
        answers = [asyncio.ensure_future(service.client.get("/runs")) for _ in range(_MANY)]
        assert await ledger_up(service) == 0
        assert (await service.client.get(f"/runs/{run_id}")).status_code == 200
        for answer in await asyncio.gather(*answers):
            assert answer.status_code == 503, answer.text
            assert answer.json()["error"]["meta"]["reason"]
        assert time.monotonic() - asked_at < 10

    async def is_back() -> bool:
        return await ledger_up(service) == 1 and (await service.client.get("/runs")).status_code == 200

    await eventually(is_back, within=30, what="the ledger answering again")

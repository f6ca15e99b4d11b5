"""Records of workers that are long gone are removed, never one of a worker that lives or comes back."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.nats.link import NatsLink
from fleet_testkit.apps import ANONYMOUS, ServiceProcess, running, until_ready
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually
from fleet_workers_api.main import build
from fleet_workers_api.registry import Registry
from fleet_workers_api.removal import Removal, is_long_gone
from fleet_workers_api.settings import Settings

from .conftest import listed, record

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("state", "silent_for", "stopped_for", "gone"),
    [
        (WorkerState.IDLE, 1.0, None, False),
        (WorkerState.IDLE, 99.0, None, False),
        (WorkerState.RUNNING, 101.0, None, True),
        (WorkerState.STOPPED_GRACEFUL, 99.0, 99.0, False),
        (WorkerState.STOPPED_GRACEFUL, 101.0, 101.0, True),
        (WorkerState.STOPPED_GRACEFUL, 101.0, 5.0, False),
        (WorkerState.STOPPED_GRACEFUL, 101.0, None, True),
    ],
)
def test_a_record_is_due_when_its_worker_has_been_gone_for_long_enough(
    state: WorkerState, silent_for: float, stopped_for: float | None, gone: bool
) -> None:
    it = WorkerRecord(
        worker_id="w1",
        instance_id="i",
        state=state,
        last_seen_at=NOW - silent_for,
        last_heartbeat_at=NOW - silent_for,
        stopped_at=None if stopped_for is None else NOW - stopped_for,
    )
    assert is_long_gone(it, now=NOW, disconnect_timeout_sec=20, ttl_sec=100) is gone


@pytest.fixture
async def replicas(nats_server: NatsServer) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Three of the service on one registry, all of them eager to remove."""
    settings = Settings(nats_url=nats_server.url, worker_disconnect_timeout_sec=1.0, worker_record_ttl_sec=2.0)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(running(build(settings))) for _ in range(3)]
        for client in clients:
            client.headers.update(ANONYMOUS)
            await until_ready(client)
        yield clients


async def test_what_is_long_gone_leaves_and_leaves_nothing_behind(
    replicas: list[httpx.AsyncClient], bucket: Bucket, worker_link: NatsLink
) -> None:
    long_ago = time.time() - 60
    for number in range(20):
        await bucket.put(f"old{number}", record(f"old{number}", last_seen_at=long_ago))
    await bucket.put("stopped", record("stopped", state="STOPPED_GRACEFUL", last_seen_at=long_ago, hidden=True))
    await bucket.put("alive", record("alive", last_seen_at=time.time() + 3600))

    async def only_the_living_are_left() -> bool:
        shown = [await listed(client, scope="all", include_hidden="true") for client in replicas]
        return shown == [["alive"]] * 3

    await eventually(only_the_living_are_left, what="the old records removed, as every replica sees it")

    async def nothing_else_is_stored() -> bool:
        return (await worker_link.stream_info("KV_pyoco_workers")).state.messages == 1

    await eventually(nothing_else_is_stored, what="no traces of them in the bucket")
    # A worker of that name may come again.
    await bucket.create("old1", record("old1", last_seen_at=time.time() + 3600))
    await eventually(lambda: is_listed(replicas[0], "old1"), what="the worker that came back")


async def is_listed(client: httpx.AsyncClient, worker_id: str) -> bool:
    return worker_id in await listed(client, scope="all")


async def test_a_worker_that_comes_back_in_that_moment_is_not_removed(worker_link: NatsLink, bucket: Bucket) -> None:
    registry = Registry(worker_link, "pyoco_workers", disconnect_timeout_sec=1.0)
    await registry.load()
    removal = Removal(worker_link, registry, ttl_sec=2.0)
    came_back = 0
    for number in range(30):
        name = f"w{number}"
        old = await bucket.put(name, record(name, last_seen_at=time.time() - 60))
        await eventually(lambda name=name: any(r.worker_id == name for r in registry.records()))
        # At the same time: one of them removes the record, the other writes it by compare-and-set.
        writing, _ = await asyncio.gather(
            bucket.update(name, record(name), revision=old), removal.tidy(), return_exceptions=True
        )
        found = await bucket.get(name)
        if isinstance(writing, int):
            came_back += 1
            assert found is not None, "the record of a living worker was removed"
            assert found.revision == writing
        else:
            assert found is None
            assert await bucket.create(name, record(name)) > old
    assert came_back > 0
    await registry.stop()


async def test_records_are_kept_for_ever_if_that_is_wanted(worker_link: NatsLink) -> None:
    registry = Registry(worker_link, "pyoco_workers", disconnect_timeout_sec=1.0)
    async with asyncio.timeout(30):
        # It ends at once: there is nothing to look for.
        await Removal(worker_link, registry, ttl_sec=0.0).run()


def test_a_time_shorter_than_the_disconnect_timeout_is_refused(tmp_path: Path) -> None:
    sentence = ServiceProcess("fleet_workers_api", tmp_path, PYOCO_WORKER_RECORD_TTL_SEC="20").refusal()
    assert sentence == (
        "the setting PYOCO_WORKER_RECORD_TTL_SEC=20 must be greater than "
        "PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC=20, or 0 to keep records"
    )

"""Watching the workers: everything first, then every change, also silence; a lost connection loses nothing."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fleet_contracts.names import HEADER_API_KEY_ID
from fleet_kit.errors import NatsUnavailable
from fleet_testkit.apps import ANONYMOUS, ServiceProcess
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.sse import Event, Feed
from fleet_testkit.waiting import eventually

from .conftest import record, until_listed


class Bench:
    """The real process, and how to watch it."""

    def __init__(self, client: httpx.AsyncClient, service: ServiceProcess) -> None:
        self.client = client
        self.socket = service.socket
        self.pid = service.pid

    @asynccontextmanager
    async def watch(self, last_event_id: str | None = None, **query: Any) -> AsyncIterator["WorkersFeed"]:
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        async with self.client.stream("GET", "/workers/events", params=query, headers=headers, timeout=30) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield WorkersFeed(answer)


class WorkersFeed(Feed):
    async def expect(self, kind: str) -> Event:
        async with asyncio.timeout(30):
            event = await self.next()
        assert event is not None, "the stream has ended"
        assert event["event"] == kind, event
        return event

    async def worker(self) -> dict[str, Any]:
        worker: dict[str, Any] = (await self.expect("worker"))["data"]["worker"]
        return worker


@pytest.fixture
async def bench(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Bench]:
    service = ServiceProcess(
        "fleet_workers_api", tmp_path, PYOCO_NATS_URL=nats_server.url, PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC="2"
    )
    async with service.serving() as client:
        client.headers.update(ANONYMOUS)
        yield Bench(client, service)


def lasting(worker_id: str, **fields: Any) -> bytes:
    """The record of a worker that needs no heartbeats."""
    return record(worker_id, **{"last_seen_at": time.time() + 3600, **fields})


async def test_a_watcher_gets_all_workers_and_then_every_change(bench: Bench, bucket: Bucket) -> None:
    await bucket.put("w1", lasting("w1"))
    await bucket.put("w2", lasting("w2", state="STOPPED_GRACEFUL"))
    await bucket.put("ghost", lasting("ghost", hidden=True))
    async with bench.watch() as feed:
        first = await feed.expect("workers")
        if len(first["data"]["workers"]) < 2:  # it was faster than the registry
            first["data"]["workers"] += [await feed.worker() for _ in range(2 - len(first["data"]["workers"]))]
        shown = {worker["worker_id"]: worker["state"] for worker in first["data"]["workers"]}
        assert shown == {"w1": "IDLE", "w2": "STOPPED_GRACEFUL"}
        assert first["data"]["ts"] == pytest.approx(time.time(), abs=30)
        await bucket.put("w1", lasting("w1", state="RUNNING", current_run_id="r1", current_run_ids=["r1"]))
        busy = await feed.worker()
        assert (busy["worker_id"], busy["state"], busy["current_run_ids"]) == ("w1", "RUNNING", ["r1"])
        [listed] = (await bench.client.get("/workers")).json()
        assert busy == listed
        assert (await bench.client.post("/workers/w1/drain")).status_code == 200
        assert (await feed.worker())["draining"] is True
        assert (await bench.client.patch("/workers/w1", json={"hidden": True})).status_code == 200
        assert (await feed.expect("removed"))["data"]["worker_id"] == "w1"
        assert (await bench.client.patch("/workers/w1", json={"hidden": False})).status_code == 200
        assert (await feed.worker())["worker_id"] == "w1"
        await bucket.delete("w2")
        assert (await feed.expect("removed"))["data"]["worker_id"] == "w2"


async def test_hidden_workers_are_sent_to_watchers_that_ask_for_them(bench: Bench, bucket: Bucket) -> None:
    await bucket.put("ghost", lasting("ghost", hidden=True))
    await until_listed(bench.client, "ghost")
    async with bench.watch(include_hidden="true") as feed, bench.watch() as plain:
        [ghost] = (await feed.expect("workers"))["data"]["workers"]
        assert (ghost["worker_id"], ghost["hidden"]) == ("ghost", True)
        assert (await plain.expect("workers"))["data"]["workers"] == []
        await bucket.put("ghost", lasting("ghost", hidden=True, draining=True))
        assert (await feed.worker())["draining"] is True
        await bucket.put("w1", lasting("w1"))
        assert (await plain.worker())["worker_id"] == "w1"


async def test_a_worker_that_falls_silent_is_shown_without_any_write(bench: Bench, bucket: Bucket) -> None:
    async with bench.watch() as feed:
        await feed.expect("workers")
        revision = await bucket.put("w1", record("w1", state="RUNNING"))
        assert (await feed.worker())["state"] == "RUNNING"
        began = time.monotonic()
        assert (await feed.worker())["state"] == "DISCONNECTED"
        assert 1.0 < time.monotonic() - began < 20
        entry = await bucket.get("w1")
        assert entry is not None
        assert entry.revision == revision
        await bucket.put("w1", lasting("w1"))
        assert (await feed.worker())["state"] == "IDLE"


async def test_heartbeats_are_no_change(bench: Bench, bucket: Bucket) -> None:
    def beat(number: int, **fields: Any) -> bytes:
        now = time.time() + number
        sync = {"enabled": True, "last_attempt_at": now, "last_success_at": now, "last_synced_at": now}
        machine = {"cpu_percent": float(number), "memory_bytes": number}
        return lasting(
            "w1", last_seen_at=now + 3600, last_heartbeat_at=now, wheel_sync=sync, machine=machine, **fields
        )

    async with bench.watch() as feed:
        await feed.expect("workers")
        await bucket.put("w1", beat(0))
        first = await feed.expect("worker")
        for number in range(1, 50):
            await bucket.put("w1", beat(number))
        await bucket.put("w1", beat(50, draining=True))
        second = await feed.expect("worker")
        assert second["data"]["worker"]["draining"] is True
        assert number_of(second) == number_of(first) + 1


async def test_who_begins_to_watch_gets_the_latest_heartbeats(bench: Bench, bucket: Bucket) -> None:
    await bucket.put("w1", lasting("w1", last_heartbeat_at=1.0))
    await until_listed(bench.client, "w1")
    async with bench.watch() as feed:
        [worker] = (await feed.expect("workers"))["data"]["workers"]
        assert worker["last_heartbeat_at"] == 1.0
    await bucket.put("w1", lasting("w1", last_heartbeat_at=2.0))

    async def is_listed() -> bool:
        [worker] = (await bench.client.get("/workers")).json()
        return bool(worker["last_heartbeat_at"] == 2.0)

    await eventually(is_listed, what="the heartbeat")
    async with bench.watch() as feed:
        [worker] = (await feed.expect("workers"))["data"]["workers"]
        assert worker["last_heartbeat_at"] == 2.0


def number_of(event: Event) -> int:
    return int(str(event["id"]).rpartition("-")[2])


async def test_who_comes_back_gets_what_was_missed_and_nothing_else(bench: Bench, bucket: Bucket) -> None:
    for name in ("w1", "w2", "w3"):
        await bucket.put(name, lasting(name))
    await until_listed(bench.client, "w3", "w2", "w1")
    async with bench.watch() as feed:
        last = await feed.expect("workers")
    await bucket.put("w2", lasting("w2", state="RUNNING"))
    await bucket.delete("w3")
    async with bench.watch(str(last["id"])) as feed:
        assert (await feed.worker())["worker_id"] == "w2"
        removed = await feed.expect("removed")
        assert removed["data"]["worker_id"] == "w3"
    async with bench.watch(str(removed["id"])) as feed:
        await bucket.put("w4", lasting("w4"))
        assert (await feed.worker())["worker_id"] == "w4"


@pytest.mark.parametrize(
    "last_event_id", ["", "7", "of-another-life-7", "{life}-999999", "{life}--1", "{life}-x", "-"]
)
async def test_a_last_event_id_that_means_nothing_here_gets_everything(
    bench: Bench, bucket: Bucket, last_event_id: str
) -> None:
    await bucket.put("w1", lasting("w1"))
    await until_listed(bench.client, "w1")
    async with bench.watch() as feed:
        life = str((await feed.expect("workers"))["id"]).partition("-")[0]
    async with bench.watch(last_event_id.format(life=life)) as feed:
        [worker] = (await feed.expect("workers"))["data"]["workers"]
        assert worker["worker_id"] == "w1"


async def test_a_watch_ends_when_its_time_is_up(bench: Bench) -> None:
    async with bench.watch(timeout_sec=1) as feed:
        await feed.expect("workers")
        assert await feed.next() is None


@pytest.mark.own_nats
async def test_an_outage_disconnects_no_worker_and_its_effects_are_shown(
    bench: Bench, bucket: Bucket, nats_server: NatsServer
) -> None:
    silent_at = time.time() + 4.0
    await bucket.put("w1", record("w1", last_seen_at=silent_at - 2.0))
    await bucket.put("w2", lasting("w2"))
    async with bench.watch() as feed:
        known = len((await feed.expect("workers"))["data"]["workers"])
        for _ in range(2 - known):
            await feed.worker()
        nats_server.kill()
        await eventually(lambda: is_down(bench), what="the outage noticed")
        # While NATS is away, silence means nothing.
        await eventually(lambda: time.time() > silent_at + 2.0, what="the disconnect timeout passing")
        nats_server.wipe()
        nats_server.start()
        gone = [(await feed.expect("removed"))["data"]["worker_id"] for _ in range(2)]
        assert sorted(gone) == ["w1", "w2"]
        await eventually(lambda: can_write(bucket), what="the registry made anew")
        assert (await feed.worker())["worker_id"] == "w3"


async def is_down(bench: Bench) -> bool:
    return (await bench.client.get("/workers")).status_code == 503


async def can_write(bucket: Bucket) -> bool:
    try:
        await bucket.put("w3", lasting("w3"))
    except NatsUnavailable:
        return False
    return True


@pytest.mark.own_nats
async def test_a_restarted_server_changes_nothing_for_those_who_watch(
    bench: Bench, bucket: Bucket, nats_server: NatsServer
) -> None:
    await bucket.put("w1", lasting("w1"))
    await until_listed(bench.client, "w1")
    async with bench.watch() as feed:
        first = await feed.expect("workers")
        nats_server.kill()
        nats_server.start()
        await eventually(lambda: can_write(bucket), what="NATS being back")
        event = await feed.expect("worker")
        assert event["data"]["worker"]["worker_id"] == "w3"
        assert number_of(event) == number_of(first) + 1


async def test_watchers_that_read_nothing_cost_no_memory_and_the_others_no_time(bench: Bench, bucket: Bucket) -> None:
    for number in range(50):
        await bucket.put(f"w{number}", lasting(f"w{number}", wheel_sync={"selected_wheels": ["x" * 100] * 20}))
    request = b"".join(
        f"{name}: {value}\r\n".encode() for name, value in {"Host": "x", **ANONYMOUS, HEADER_API_KEY_ID: "k"}.items()
    )
    async with AsyncExitStack() as stack:
        deaf = []
        for _ in range(100):
            line = stack.enter_context(socket.socket(socket.AF_UNIX))
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.connect(str(bench.socket))
            line.sendall(b"GET /workers/events HTTP/1.1\r\n" + request + b"\r\n")
            deaf.append(line)
        feed = await stack.enter_async_context(bench.watch())
        await feed.expect("workers")
        process = psutil.Process(bench.pid)

        async def change_everything(rounds: int) -> float:
            """The slowest of these changes, from the write until the watcher who reads has heard of it."""
            slowest = 0.0
            for round_ in range(rounds):
                for number in range(50):
                    name = f"w{number}"
                    await bucket.put(name, lasting(name, last_run_id=str(round_), tags=["x" * 1000]))
                mark = f"mark-{time.monotonic()}"
                await bucket.put("mark", lasting("mark", last_run_id=mark))
                began = time.monotonic()
                while (await feed.worker())["last_run_id"] != mark:
                    pass
                slowest = max(slowest, time.monotonic() - began)
            return slowest

        await change_everything(5)
        before = process.memory_info().rss
        slowest = await change_everything(30)
        grown = process.memory_info().rss - before
    assert grown < 8 * 1024 * 1024, f"{grown} bytes more"
    assert slowest < 5.0

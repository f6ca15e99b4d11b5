"""Watching a run: its states arrive, a lost connection loses nothing, and it ends when the run does."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet_contracts.names import HEADER_SCOPES, HEADER_TENANT_ID
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink, WrongRevision
from fleet_testkit.apps import ServiceProcess
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.snapshots import change_snapshot, read_snapshot
from fleet_testkit.sse import Feed
from fleet_testkit.waiting import eventually


class Bench:
    """The real process, and a hand on its bucket."""

    def __init__(self, client: httpx.AsyncClient, link: NatsLink, socket: Path) -> None:
        self.client = client
        self.runs = Bucket(link, "pyoco_runs")
        self.socket = socket

    async def submit(self) -> str:
        answer = await self.client.post("/runs", json={"flow_name": "hello"})
        return str(answer.json()["run_id"])

    async def write(self, run_id: str, **changes: Any) -> int:
        return await change_snapshot(
            self.runs, run_id, lambda snapshot: snapshot.model_copy(update={"updated_at": time.time(), **changes})
        )

    async def is_listed(self, run_id: str, status: str) -> bool:
        listed = (await self.client.get("/runs", params={"limit": 200})).json()
        return any(item["run_id"] == run_id and item["status"] == status for item in listed)

    @asynccontextmanager
    async def watch(
        self, run_id: str, *, headers: dict[str, str] | None = None, **query: Any
    ) -> AsyncIterator["WatchFeed"]:
        async with self.client.stream(
            "GET", f"/runs/{run_id}/watch", params=query, headers=headers, timeout=30
        ) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield WatchFeed(answer)


class WatchFeed(Feed):
    async def status(self) -> str:
        event = await self.next()
        assert event is not None
        assert event["event"] == "snapshot"
        return str(event["data"]["snapshot"]["status"])


@pytest.fixture(scope="module")
def process_settings() -> dict[str, str]:
    return {"PYOCO_RUN_LOST_AFTER_SEC": "60", "PYOCO_NATS_REQUEST_TIMEOUT_SEC": "30"}


@pytest.fixture
async def bench(runs_process: ServiceProcess) -> AsyncIterator[Bench]:
    async with runs_process.connected() as (client, link):
        yield Bench(client, link, runs_process.socket)


@pytest.fixture
async def own_bench(own_runs_process: ServiceProcess) -> AsyncIterator[Bench]:
    async with own_runs_process.connected() as (client, link):
        yield Bench(client, link, own_runs_process.socket)


async def test_a_watcher_sees_the_run_as_it_is_and_then_every_change_until_its_end(bench: Bench) -> None:
    run_id = await bench.submit()
    async with bench.watch(run_id) as feed:
        first = await feed.next()
        assert first is not None
        assert first["data"]["run_id"] == run_id
        assert first["data"]["snapshot"]["status"] == "PENDING"
        assert "task_records" not in first["data"]["snapshot"]
        assert first["data"]["ts"] == pytest.approx(time.time(), abs=30)
        revision = await bench.write(run_id, status=RunStatus.RUNNING, worker_id="w1", attempt=1)
        running = await feed.next()
        assert running is not None
        assert running["id"].endswith(f"-{revision}")
        assert running["data"]["snapshot"]["status"] == "RUNNING"
        await bench.write(run_id, status=RunStatus.COMPLETED)
        assert await feed.status() == "COMPLETED"
        assert await feed.next() is None


async def test_a_watcher_that_comes_back_goes_on_where_it_was(bench: Bench) -> None:
    run_id = await bench.submit()
    await bench.write(run_id, status=RunStatus.RUNNING, worker_id="w1", attempt=1)
    async with bench.watch(run_id) as feed:
        running = await feed.next()
        assert running is not None
    async with bench.watch(run_id, headers={"Last-Event-ID": running["id"]}) as feed:
        await bench.write(run_id, status=RunStatus.FAILED)
        failed = await feed.next()
        assert failed is not None
        assert failed["data"]["snapshot"]["status"] == "FAILED"
        assert await feed.next() is None
    # What happened while it was away is the first thing it hears. The end is sent to everybody, also again, and an
    # id that says nothing here begins with the present state.
    for last in (running["id"], failed["id"], "1000000", "another-1000000", "-", "x" * 100):
        async with bench.watch(run_id, headers={"Last-Event-ID": last}) as feed:
            assert await feed.status() == "FAILED"
            assert await feed.next() is None


async def test_since_and_include_choose_what_is_shown(bench: Bench) -> None:
    run_id = await bench.submit()
    async with bench.watch(run_id, since=time.time() + 3600, timeout_sec=1) as feed:
        event = await feed.next()
        assert event is None or event["event"] == "heartbeat"
    await bench.write(run_id, status=RunStatus.COMPLETED, task_records={"greet": {"output": 1}})
    async with bench.watch(run_id, include="records") as feed:
        event = await feed.next()
        assert event is not None
        assert event["data"]["snapshot"]["task_records"] == {"greet": {"output": 1}}
    # An end is always sent: a stream that ended without one would say nothing of why.
    async with bench.watch(run_id, since=time.time() + 3600) as feed:
        assert await feed.status() == "COMPLETED"
        assert await feed.next() is None


async def test_the_stream_ends_when_its_time_is_up(bench: Bench) -> None:
    run_id = await bench.submit()
    begun = time.monotonic()
    async with bench.watch(run_id, timeout_sec=1) as feed:
        assert await feed.status() == "PENDING"
        while await feed.next() is not None:
            continue
    assert 0.9 <= time.monotonic() - begun < 20


@pytest.mark.own_nats
async def test_a_restart_of_nats_does_not_end_the_watch(own_bench: Bench, nats_server: NatsServer) -> None:
    run_id = await own_bench.submit()
    async with own_bench.watch(run_id) as feed:
        assert await feed.status() == "PENDING"
        nats_server.kill()
        nats_server.start()

        async def written() -> bool:
            try:
                await own_bench.write(run_id, status=RunStatus.COMPLETED)
            except NatsUnavailable:
                return False
            return True

        await eventually(written, within=20)
        event = await feed.next()
        while event is not None and event["event"] == "heartbeat":
            event = await feed.next()
        assert event is not None
        assert event["data"]["snapshot"]["status"] == "COMPLETED"


@pytest.mark.own_nats
async def test_watchers_see_the_end_although_the_store_was_lost(own_bench: Bench, nats_server: NatsServer) -> None:
    ended, going_on = await own_bench.submit(), await own_bench.submit()
    for run_id in (ended, going_on):
        for _ in range(5):  # revisions that the next store will not reach so soon
            await own_bench.write(run_id, status=RunStatus.RUNNING, worker_id="w1", attempt=1)
    async with own_bench.watch(ended) as feed:
        last_of_ended = await feed.next()
        assert last_of_ended is not None
    await own_bench.write(ended, status=RunStatus.COMPLETED)
    await eventually(lambda: own_bench.is_listed(ended, "COMPLETED"), what="the ledger knowing the end")
    async with own_bench.watch(going_on) as feed:
        last = await feed.next()
        assert last is not None
        nats_server.kill()
        nats_server.wipe()
        nats_server.start()

        async def finished() -> bool:
            try:
                if await own_bench.runs.get(going_on) is None:
                    return False  # the sweeper has not made it anew yet
                await own_bench.write(going_on, status=RunStatus.COMPLETED)
            except (NatsUnavailable, WrongRevision):
                return False
            return True

        await eventually(finished, what="the run ended in the new store")
        seen = [last]
        while (event := await feed.next()) is not None:
            seen += [event] if event["event"] == "snapshot" else []
        assert seen[-1]["data"]["snapshot"]["status"] == "COMPLETED"
    for run_id, before in ((ended, last_of_ended), (going_on, last)):
        async with own_bench.watch(run_id, headers={"Last-Event-ID": before["id"]}) as feed:
            assert await feed.status() == "COMPLETED"
            assert await feed.next() is None


async def test_an_end_that_only_the_ledger_knows_is_sent_to_watchers(
    bench: Bench, runs_process: ServiceProcess
) -> None:
    """As after KV was set back to a time before the end, or when every message about it was lost."""
    watched, set_back = await bench.submit(), await bench.submit()
    for run_id in (watched, set_back):
        await bench.write(run_id, status=RunStatus.RUNNING, worker_id="w1", attempt=1)
        await eventually(lambda run_id=run_id: bench.is_listed(run_id, "RUNNING"), what="the ledger following")
    async with bench.watch(watched) as feed:
        assert await feed.status() == "RUNNING"
        with closing(sqlite3.connect(runs_process.log.parent / "runs.db", timeout=30)) as database, database:
            for run_id in (watched, set_back):
                snapshot = (await read_snapshot(bench.runs, run_id)).finish(RunStatus.CANCELLED, now=time.time())
                database.execute(
                    "UPDATE runs SET status = 'CANCELLED', finished_at = ? WHERE run_id = ?", (time.time(), run_id)
                )
                database.execute(
                    "UPDATE run_documents SET snapshot = ? WHERE run_id = ?", (snapshot.encode().decode(), run_id)
                )
        event = await feed.next()
        while event is not None and event["event"] == "heartbeat":
            event = await feed.next()
        assert event is not None
        assert event["data"]["snapshot"]["status"] == "CANCELLED"
        assert await feed.next() is None
    async with bench.watch(set_back) as feed:
        assert await feed.status() == "CANCELLED"
        assert await feed.next() is None


async def test_many_watchers_of_many_runs_get_only_changes_of_their_own(bench: Bench) -> None:
    ids = [await bench.submit() for _ in range(10)]

    async def follow(run_id: str) -> list[str]:
        async with bench.watch(run_id) as feed:
            seen = []
            while (event := await feed.next()) is not None:
                if event["event"] == "snapshot":
                    assert event["data"]["snapshot"]["run_id"] == run_id
                    seen.append(event["data"]["snapshot"]["status"])
                    if seen == ["PENDING"]:
                        ready.release()
            return seen

    ready = asyncio.Semaphore(0)
    follows = [asyncio.create_task(follow(run_id)) for run_id in ids for _ in range(5)]
    for _ in follows:
        await ready.acquire()
    for run_id in ids:
        await bench.write(run_id, status=RunStatus.CANCELLED)
    for seen in await asyncio.gather(*follows):
        assert seen == ["PENDING", "CANCELLED"]


@pytest.mark.alone
async def test_two_thousand_watchers_on_one_process_each_get_changes_of_their_run(bench: Bench) -> None:
    ids = []
    for _ in range(2):
        answer = await bench.client.post("/runs/batch", json={"runs": [{"flow_name": "hello"}] * 1000}, timeout=30)
        ids += [run["run_id"] for run in answer.json()["runs"]]
    opening = asyncio.Semaphore(50)

    async def open_one(run_id: str) -> asyncio.StreamReader:
        async with opening:
            reader, writer = await asyncio.open_unix_connection(str(bench.socket))
            lines = (
                f"GET /runs/{run_id}/watch HTTP/1.1",
                "Host: x",
                "Connection: close",
                f"{HEADER_TENANT_ID}: anonymous",
                f"{HEADER_SCOPES}: runs:read",
            )
            writer.write("\r\n".join((*lines, "", "")).encode())
            await reader.readuntil(b'"status":"PENDING"')
            writers.append(writer)
            return reader

    writers: list[asyncio.StreamWriter] = []
    async with asyncio.timeout(240):
        readers = dict(zip(ids, await asyncio.gather(*(open_one(run_id) for run_id in ids)), strict=True))
        chosen = ids[::100]
        await asyncio.gather(*(bench.write(run_id, status=RunStatus.CANCELLED) for run_id in chosen))
        for run_id in chosen:
            await readers[run_id].readuntil(b'"status":"CANCELLED"')
            assert (await readers[run_id].read()).endswith(b"0\r\n\r\n")
    for writer in writers:
        writer.close()


async def test_a_bad_query_is_refused(bench: Bench) -> None:
    run_id = await bench.submit()
    for query in ("timeout_sec=0", "timeout_sec=601", "since=x", "include=some"):
        answer = await bench.client.get(f"/runs/{run_id}/watch?{query}")
        assert answer.status_code == 422
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0002"


async def test_nobody_watches_what_is_not_theirs_or_not_there(bench: Bench) -> None:
    run_id = await bench.submit()
    for path, headers in (
        (f"/runs/{run_id}/watch", {HEADER_TENANT_ID: "other"}),
        ("/runs/6f1c1a34-8c0e-4e37-9b1b-000000000000/watch", {}),
    ):
        answer = await bench.client.get(path, headers=headers)
        assert answer.status_code == 404
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0005"

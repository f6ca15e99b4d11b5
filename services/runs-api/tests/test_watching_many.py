"""Watching many runs in one stream: each end is told once and none is missed; results come in one answer."""

import asyncio
import json
import resource
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet_contracts.names import HEADER_TENANT_ID
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink, WrongRevision
from fleet_runs_api.read.event_ids import EventId
from fleet_runs_api.read.watching.hub import News
from fleet_runs_api.read.watching.pending import PendingNews
from fleet_testkit.apps import ServiceProcess
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.snapshots import change_snapshot
from fleet_testkit.sse import Event, Feed
from fleet_testkit.waiting import eventually

NOBODYS = "6f1c1a34-8c0e-4e37-9b1b-000000000000"


class Bench:
    """The real process, and a hand on its bucket."""

    def __init__(self, client: httpx.AsyncClient, link: NatsLink) -> None:
        self.client = client
        self.link = link
        self.runs = Bucket(link, "pyoco_runs")

    async def submit(self, count: int = 1, **more: Any) -> list[str]:
        answer = await self.client.post("/runs/batch", json={"runs": [{"flow_name": "hello", **more}] * count})
        assert answer.status_code == 200, answer.text
        run_ids = [run["run_id"] for run in answer.json()["runs"]]
        # A batch is sent after its answer.
        await eventually(lambda: self.runs.get(run_ids[-1]), what="the runs in KV")
        return run_ids

    async def write(self, run_id: str, **changes: Any) -> int:
        return await self.change(run_id, lambda run: run.model_copy(update={"updated_at": time.time(), **changes}))

    async def change(self, run_id: str, change: Any) -> int:
        return await change_snapshot(self.runs, run_id, change)

    async def begin(self, run_id: str) -> int:
        return await self.change(run_id, lambda run: _claimed(run))

    async def finish(self, run_id: str, **result: Any) -> int:
        return await self.change(run_id, lambda run: _finished(run, **result))

    async def is_listed(self, run_id: str, status: str) -> bool:
        listed = (await self.client.get("/runs", params={"q": run_id})).json()
        return any(item["status"] == status for item in listed)

    @asynccontextmanager
    async def watch(
        self, run_ids: list[str] | None = None, *, last: str = "", **query: Any
    ) -> AsyncIterator["ManyFeed"]:
        method, body = ("GET", None) if run_ids is None else ("POST", {"run_ids": run_ids})
        headers = {"Last-Event-ID": last} if last else {}
        async with self.client.stream(
            method, "/runs/watch", params=query, json=body, headers=headers, timeout=30
        ) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield ManyFeed(answer)

    async def results(self, run_ids: list[str]) -> dict[str, Any]:
        answer = await self.client.post("/runs/results", json={"run_ids": run_ids}, timeout=30)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body


class ManyFeed(Feed):
    async def until(self, kind: str) -> list[Event]:
        """The events up to the next one of this kind, without keepalives."""
        seen: list[Event] = []
        while (event := await self.next()) is not None:
            if "event" in event:
                seen.append(event)
                if event["event"] == kind:
                    return seen
        raise AssertionError(f"the stream ended without {kind}: {seen[-5:]}")

    async def run(self) -> Event:
        [event] = await self.until("run")
        return event


def _claimed(run: RunSnapshot) -> RunSnapshot:
    return run.claim(worker_id="w1", worker_instance_id="i1", ack_subject=None, now=time.time())


def _finished(run: RunSnapshot, **result: Any) -> RunSnapshot:
    held = run if run.is_held else _claimed(run)
    status = RunStatus.FAILED if "error" in result else RunStatus.COMPLETED
    return held.finish(status, now=time.time(), **result)


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def told(events: list[Event]) -> list[tuple[str, str]]:
    return [(e["data"]["run_id"], e["data"]["status"]) for e in events if e["event"] == "run"]


@pytest.fixture(scope="module")
def process_settings() -> dict[str, str]:
    return {"PYOCO_RUN_LOST_AFTER_SEC": "60", "PYOCO_NATS_REQUEST_TIMEOUT_SEC": "30"}


@pytest.fixture
async def bench(runs_process: ServiceProcess) -> AsyncIterator[Bench]:
    async with runs_process.connected() as (client, link):
        yield Bench(client, link)


@pytest.fixture
async def own_bench(own_runs_process: ServiceProcess) -> AsyncIterator[Bench]:
    async with own_runs_process.connected() as (client, link):
        yield Bench(client, link)


async def test_a_stream_tells_the_present_states_then_every_change_and_each_end_once(bench: Bench) -> None:
    over, first, second = await bench.submit(3)
    await bench.finish(over)
    async with bench.client.stream(
        "GET", "/runs/watch", params={"ids": f"{over},{first},{second},{first}"}, timeout=30
    ) as answer:
        feed = ManyFeed(answer)
        *states, ready = await feed.until("ready")
        assert told(states) == [(over, "COMPLETED"), (first, "PENDING"), (second, "PENDING")]
        assert all("id" not in state for state in states)
        assert ready["data"] == {"runs": 3, "ended": 1}
        revision = await bench.begin(first)
        running = await feed.run()
        assert running["id"].endswith(f"-{revision}")
        shown = running["data"]
        assert (shown["status"], shown["ended"], shown["attempt"], shown["worker_id"]) == ("RUNNING", False, 1, "w1")
        assert (shown["flow_name"], shown["error"]) == ("hello", None)
        assert "result" not in shown
        # A heartbeat changes nothing that is told.
        await bench.write(first, heartbeat_at=time.time(), tasks={"greet": TaskStatus.RUNNING})
        await bench.finish(second, error="x" * 1000, reason="execution_error")
        failed = await feed.run()
        assert (failed["data"]["run_id"], failed["data"]["status"]) == (second, "FAILED")
        assert (failed["data"]["error"], failed["data"]["ended"]) == ("x" * 500, True)
        await bench.finish(first)
        *last, end = await feed.until("end")
        assert told(last) == [(first, "COMPLETED")]
        assert end["data"] == {"runs": 3}
        assert await feed.next() is None


async def test_runs_that_do_not_exist_are_named_and_not_waited_for(bench: Bench) -> None:
    [run_id] = await bench.submit()
    await bench.finish(run_id)
    async with bench.watch([NOBODYS, run_id]) as feed:
        unknown, run, ready, end = await feed.until("end")
        assert (unknown["event"], unknown["data"]["run_ids"]) == ("unknown", [NOBODYS])
        assert NOBODYS in unknown["data"]["detail"]
        assert told([run]) == [(run_id, "COMPLETED")]
        assert (ready["data"], end["data"]) == ({"runs": 1, "ended": 1}, {"runs": 1})
    # A run of another tenant does not exist.
    headers = {HEADER_TENANT_ID: "other"}
    for path in ("watch", "results"):
        answer = await bench.client.post(f"/runs/{path}", json={"run_ids": [run_id]}, headers=headers, timeout=30)
        assert "COMPLETED" not in answer.text
    assert answer.json() == {"results": [{"run_id": run_id, "status": None, "ended": False}], "next": None}


async def test_a_stream_that_is_resumed_tells_what_changed_and_every_end(bench: Bench) -> None:
    waiting, changing, ending = await bench.submit(3)
    await bench.begin(changing)
    async with bench.watch([waiting, changing, ending]) as feed:
        last = (await feed.until("ready"))[-1]["id"]
    # Nothing has changed since then.
    async with bench.watch([waiting, changing, ending], last=last) as feed:
        [_] = await feed.until("ready")
    await bench.write(changing, worker_id="w2")
    await bench.finish(ending)
    for expected in ([(changing, "RUNNING"), (ending, "COMPLETED")], [(ending, "COMPLETED")]):
        # An end is told again: nobody knows whether the client has seen it.
        async with bench.watch([waiting, changing, ending], last=last) as feed:
            *states, ready = await feed.until("ready")
            assert told(states) == expected
            last = ready["id"]
    for nonsense in ("another-1000000", "1000000", "-"):
        async with bench.watch([waiting, changing], last=nonsense) as feed:
            *states, _ = await feed.until("ready")
            assert [run_id for run_id, _ in told(states)] == [waiting, changing]


async def test_results_come_with_the_ends_if_they_are_asked_for(bench: Bench) -> None:
    over, live, large, failing = await bench.submit(4)
    records = {"greet": {"output": [1, 2]}}
    await bench.write(over, task_records=records, worker_id="w1", attempt=1)
    await bench.finish(over, result={"x": 10**30})
    await eventually(lambda: bench.is_listed(over, "COMPLETED"), what="the ledger knowing the end")
    async with bench.watch([over, live, large, failing], results="true") as feed:
        [first, *_] = await feed.until("ready")
        alone = (await bench.client.get(f"/runs/{over}/result")).json()
        assert {name: first["data"][name] for name in alone} == alone
        assert first["data"]["result"] == {"x": 10**30}
        await bench.finish(live, result="fine")
        assert (await feed.run())["data"]["result"] == "fine"
        await bench.finish(large, result="x" * 300_000)
        too_large = (await feed.run())["data"]
        assert (too_large["result"], too_large["outputs"], too_large["too_large"]) == (None, {}, True)
        await bench.finish(failing, error="e" * 1000)
        *_, failed, _ = await feed.until("end")
        assert failed["data"]["error"] == "e" * 1000
    page = await bench.results([live, NOBODYS, over, live])
    assert page["next"] is None
    assert [item["result"] for item in page["results"] if item["ended"]] == ["fine", {"x": 10**30}, "fine"]
    assert page["results"][1] == {"run_id": NOBODYS, "status": None, "ended": False}


async def test_an_answer_of_results_is_bounded_and_says_where_to_go_on(bench: Bench) -> None:
    run_ids = await bench.submit(30)
    for run_id in run_ids[:-1]:
        await bench.finish(run_id, result="x" * 200_000)
    found: list[dict[str, Any]] = []
    pages = 0
    asked = run_ids
    while asked:
        page = await bench.results(asked)
        assert sum(len(item.get("result") or "") for item in page["results"]) <= 4 * 1024 * 1024
        found += page["results"]
        asked = asked[page["next"] :] if page["next"] else []
        pages += 1
    assert pages == 2
    assert [item["run_id"] for item in found] == run_ids
    assert [item["ended"] for item in found] == [True] * 29 + [False]
    assert (found[-1]["status"], "result" in found[-1]) == ("PENDING", False)


async def test_streams_with_results_that_nobody_reads_hold_little_memory(
    own_bench: Bench, own_runs_process: ServiceProcess
) -> None:
    run_ids = await own_bench.submit(30)
    for run_id in run_ids:
        await own_bench.finish(run_id, result="x" * 250_000)
    body = json.dumps({"run_ids": run_ids})
    identity = "".join(f"{name}: {value}\r\n" for name, value in own_bench.client.headers.items() if "x-" in name)
    head = (
        f"POST /runs/watch?results=true HTTP/1.1\r\nHost: x\r\n{identity}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    async def open_and_stop_reading() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_unix_connection(str(own_runs_process.socket), limit=1024)
        writer.write(f"{head}{body}".encode())
        read = b""
        while b"event: run" not in read:
            part = await reader.read(1024)
            assert part, read
            read += part
        return writer

    before = resident_bytes(own_runs_process.pid)
    writers = await asyncio.gather(*(open_and_stop_reading() for _ in range(30)))
    grown = resident_bytes(own_runs_process.pid) - before
    for writer in writers:
        writer.close()
    # What is shown of three runs, what the connections buffer, and the documents that were read at a time.
    assert grown < 200 * 1024 * 1024


async def test_by_labels_a_stream_tells_also_of_runs_that_come_later(bench: Bench) -> None:
    label, other = (f"label-{uuid.uuid4()}" for _ in range(2))
    over, first, _ = [*await bench.submit(2, tags=[label]), *await bench.submit(1, tags=["none"])]
    await bench.finish(over)
    async with bench.watch(tags=f"{label},{other}") as feed:
        *states, ready = await feed.until("ready")
        assert told(states) == [(over, "COMPLETED"), (first, "PENDING")]
        assert ready["data"] == {"runs": 2, "ended": 1}
        [later] = await bench.submit(1, tags=["x", other])
        assert told([await feed.run()]) == [(later, "PENDING")]
        for run_id in (first, later):
            await bench.finish(run_id)
            assert told([await feed.run()]) == [(run_id, "COMPLETED")]
    async with bench.client.stream(
        "GET", "/runs/watch", params={"tags": label, "timeout_sec": 1}, headers={HEADER_TENANT_ID: "other"}
    ) as answer:
        assert [event["event"] for event in await ManyFeed(answer).until("ready")] == ["ready"]
    # It does not end by itself, because more may come.
    async with bench.watch(tags=label, timeout_sec=1) as feed:
        *_, ready = await feed.until("ready")
        assert await feed.next() is None


async def test_a_thousand_runs_share_one_stream_and_one_consumer(bench: Bench) -> None:
    async def consumers() -> int:
        return (await bench.link.stream_info("KV_pyoco_runs")).state.consumer_count

    run_ids = await bench.submit(1000)
    before = await consumers()
    async with bench.watch(run_ids) as feed:
        *states, ready = await feed.until("ready")
        assert [run_id for run_id, _ in told(states)] == run_ids
        assert ready["data"] == {"runs": 1000, "ended": 0}
        metrics = (await bench.client.get("/metrics")).text
        assert "\npyoco_run_watchers 1.0\n" in metrics
        assert await consumers() <= before + 1
        for start in range(0, 1000, 100):
            await asyncio.gather(*(bench.finish(run_id) for run_id in run_ids[start : start + 100]))
        events = await feed.until("end")
        ended = [run_id for run_id, status in told(events) if status == "COMPLETED"]
        assert len(ended) == 1000
        assert set(ended) == set(run_ids)


@pytest.mark.own_nats
async def test_no_end_is_missed_although_nats_was_gone_and_has_lost_its_store(
    own_bench: Bench, nats_server: NatsServer
) -> None:
    before, *going_on = await own_bench.submit(3)
    await own_bench.finish(before)
    await eventually(lambda: own_bench.is_listed(before, "COMPLETED"), what="the ledger knowing the end")
    async with own_bench.watch([before, *going_on]) as feed:
        await feed.until("ready")

        async def finished(run_id: str) -> bool:
            try:
                if await own_bench.runs.get(run_id) is None:
                    return False  # the sweeper has not made it anew yet
                await own_bench.finish(run_id)
            except (NatsUnavailable, WrongRevision):
                return False
            return True

        nats_server.kill()
        nats_server.wipe()
        nats_server.start()
        for run_id in going_on:
            await eventually(lambda run_id=run_id: finished(run_id), within=30)
        ended = [run_id for run_id, status in told(await feed.until("end")) if status == "COMPLETED"]
        assert sorted(ended) == sorted(going_on)


async def test_bad_requests_are_refused_before_a_stream_begins(bench: Bench) -> None:
    some = str(uuid.uuid4())
    for query in ("", f"ids={some}&tags=x", "ids=nope", f"ids={some}&timeout_sec=0", "ids=" + ",".join([some] * 201)):
        answer = await bench.client.get(f"/runs/watch?{query}")
        assert answer.status_code == 422, query
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0002"
    for path in ("/runs/watch", "/runs/results"):
        for body in ({}, {"run_ids": []}, {"run_ids": ["nope"]}, {"run_ids": [some] * 1001}, {"ids": [some]}):
            answer = await bench.client.post(path, json=body)
            assert answer.status_code == 422, body
        plain = {"content-type": "text/plain"}
        assert (await bench.client.post(path, content=b"{}", headers=plain)).status_code == 415


async def test_what_a_slow_reader_has_not_taken_is_bounded_and_in_the_order_of_revisions() -> None:
    pending = PendingNews()
    for place in range(1, 21):
        pending.notify("a", News(EventId("s", place), b"x" * 1000))
    pending.notify("b", News(EventId("s", 21), b"x" * 1000))
    pending.notify("a", News(EventId("s", 22), b"x" * 1000))
    assert [(run_id, news.id.place) for run_id, news in await pending.take(0)] == [("b", 21), ("a", 22)]
    for number in range(1000):
        pending.notify(f"run {number}", News(EventId("s", 100 + number), b"x" * 256 * 1024))
    kept = 0
    while taken := await pending.take(0):
        kept += len(taken)
    assert kept == 16
    # What is not kept is read instead.
    assert len(pending.take_to_look()) == 1000 - kept

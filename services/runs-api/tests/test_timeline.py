"""What a run did, said and returned: all of it, in order, while it happens and afterwards."""

import asyncio
import time
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from fleet_contracts.events import EventKind, RunEvent, RunEvents
from fleet_contracts.names import HEADER_TENANT_ID, WireNames
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink, WrongRevision
from fleet_kit.nats.resources import ensure_stream
from fleet_kit.nats.stream_limits import EventsLimits
from fleet_kit.nats.streams import events_stream_config
from fleet_runs_api.read.timeline.timeline import TimelineReader
from fleet_runs_api.read.views import Writer
from fleet_testkit.apps import ServiceProcess
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_links import ready_link
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.snapshots import change_snapshot
from fleet_testkit.sse import Event, Feed
from fleet_testkit.waiting import eventually

NAMES = WireNames()
_HEARD_WITHIN_SECONDS = 60.0


def status(state: RunStatus) -> RunEvent:
    return RunEvent(at=time.time(), kind=EventKind.RUN, status=state)


def said(text: str, *, task: str = "greet", stream: str = "stdout") -> RunEvent:
    return RunEvent(at=time.time(), kind=EventKind.LOG, task=task, stream=stream, text=text)


async def publish(link: NatsLink, run_id: str, batch: int, *events: RunEvent, attempt: int = 1) -> None:
    """As a worker does it."""
    message = RunEvents(run_id=run_id, attempt=attempt, batch=batch, worker_id="w1", events=list(events))
    await link.publish(NAMES.events_subject("w1", run_id), message.encode())


class Bench:
    """The real process, and a hand on its bucket and its events."""

    def __init__(self, client: httpx.AsyncClient, link: NatsLink) -> None:
        self.client = client
        self.link = link
        self.runs = Bucket(link, NAMES.runs_kv_bucket)

    async def submit(self) -> str:
        answer = await self.client.post("/runs", json={"flow_name": "hello"})
        return str(answer.json()["run_id"])

    async def claim(self, run_id: str) -> None:
        await self._change(run_id, worker_id="w1", attempt=1, status=RunStatus.RUNNING)

    async def end(self, run_id: str, **changes: Any) -> None:
        await self._change(run_id, **({"attempt": 1, "status": RunStatus.COMPLETED} | changes))

    async def publish(self, run_id: str, batch: int, *events: RunEvent, attempt: int = 1) -> None:
        """As the worker that has claimed this attempt before."""
        entry = await self.runs.get(run_id)
        if entry is not None and RunSnapshot.decode(entry.value).attempt < attempt:
            await change_snapshot(self.runs, run_id, _claimed)
        await publish(self.link, run_id, batch, *events, attempt=attempt)

    async def is_listed(self, run_id: str, status: RunStatus) -> bool:
        answer = await self.client.get("/runs", params={"status": status.value})
        return any(run["run_id"] == run_id for run in answer.json())

    async def events(self, run_id: str, **query: Any) -> dict[str, Any]:
        answer = await self.client.get(f"/runs/{run_id}/events", params=query)
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page

    async def log(self, run_id: str, **query: Any) -> str:
        answer = await self.client.get(f"/runs/{run_id}/logs", params=query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        return answer.text

    @asynccontextmanager
    async def follow(self, run_id: str, *, after: str | None = None, **query: Any) -> AsyncIterator[Feed]:
        headers = {"Last-Event-ID": after} if after else {}
        async with self.client.stream(
            "GET", f"/runs/{run_id}/logs", params={"follow": 1, **query}, headers=headers, timeout=30
        ) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield Feed(answer)

    async def _change(self, run_id: str, **changes: Any) -> None:
        def change(snapshot: RunSnapshot) -> RunSnapshot:
            return snapshot.model_copy(update={"updated_at": time.time(), **changes})

        await change_snapshot(self.runs, run_id, change)


def _claimed(snapshot: RunSnapshot) -> RunSnapshot:
    now = time.time()
    free = snapshot.hand_back(now=now, interrupted=False) if snapshot.is_held else snapshot
    return free.claim(worker_id="w1", worker_instance_id="i1", ack_subject=None, now=now)


async def heard(feed: Feed) -> Event:
    """The next event that is no heartbeat."""
    async with asyncio.timeout(_HEARD_WITHIN_SECONDS):
        event = await feed.next()
        while event is not None and event["event"] == "heartbeat":
            event = await feed.next()
    assert event is not None
    return event


@pytest.fixture(scope="module")
def process_settings() -> dict[str, str]:
    return {"PYOCO_RUN_LOST_AFTER_SEC": "60", "PYOCO_NATS_REQUEST_TIMEOUT_SEC": "1"}


@pytest.fixture
async def bench(runs_process: ServiceProcess) -> AsyncIterator[Bench]:
    async with runs_process.connected() as (client, link):
        yield Bench(client, link)


@pytest.fixture
async def own_bench(own_runs_process: ServiceProcess) -> AsyncIterator[Bench]:
    async with own_runs_process.connected() as (client, link):
        yield Bench(client, link)


async def test_a_run_that_nobody_has_begun_has_no_timeline_and_no_output(bench: Bench) -> None:
    run_id = await bench.submit()
    assert await bench.events(run_id) == {
        "run_id": run_id,
        "events": [],
        "next": None,
        "truncated": False,
        "missing_batches": 0,
    }
    assert await bench.log(run_id) == ""


async def test_a_timeline_is_shown_in_order_with_repeats_dropped_and_gaps_counted(bench: Bench) -> None:
    run_id = await bench.submit()
    await bench.publish(run_id, 0, status(RunStatus.RUNNING), said("one\n"))
    await bench.publish(run_id, 0, status(RunStatus.RUNNING), said("one\n"))
    await bench.publish(run_id, 1, said("two\n"))
    await bench.publish(run_id, 4, said("five\n"), status(RunStatus.PENDING))
    await bench.publish(run_id, 0, status(RunStatus.RUNNING), said("again\n"), attempt=2)
    page = await bench.events(run_id)
    assert [event["text"] or event["status"] for event in page["events"]] == [
        *("RUNNING", "one\n", "two\n", "five\n", "PENDING"),
        *("RUNNING", "again\n"),
    ]
    assert (page["next"], page["truncated"], page["missing_batches"]) == (None, False, 2)
    first, log = page["events"][:2]
    assert first == {
        **{"kind": "run", "status": "RUNNING", "task": None, "stream": None, "level": None, "text": None},
        **{"attempt": 1, "worker_id": "w1", "id": first["id"], "at": pytest.approx(time.time(), abs=30)},
    }
    assert (log["kind"], log["task"], log["stream"], log["status"]) == ("log", "greet", "stdout", None)
    again = await bench.events(run_id, attempt=2)
    assert [event["attempt"] for event in again["events"]] == [2, 2]


async def test_pages_of_any_size_make_the_whole_timeline(bench: Bench) -> None:
    run_id = await bench.submit()
    await bench.publish(run_id, 0, *(said(f"{number}") for number in range(5)))
    await bench.publish(run_id, 0, *(said(f"{number}") for number in range(5)))  # a repeat, just after a page
    await bench.publish(run_id, 1, *(said(f"{number}") for number in range(5, 7)))
    for limit in (1, 2, 3, 5, 7, 8, 5000):
        seen = []
        page = await bench.events(run_id, limit=limit)
        seen += page["events"]
        while page["next"] is not None:
            assert len(page["events"]) == limit
            assert page["next"] == page["events"][-1]["id"]
            page = await bench.events(run_id, limit=limit, after=page["next"])
            seen += page["events"]
        assert [event["text"] for event in seen] == [str(number) for number in range(7)]
    # The id of the last event is where a timeline that still grows goes on.
    await bench.publish(run_id, 2, said("later"))
    for after in (seen[-1]["id"], seen[-1]["id"].partition("-")[2]):
        page = await bench.events(run_id, after=after)
        assert [event["text"] for event in page["events"]] == ["later"]


async def test_a_timeline_says_when_its_beginning_is_gone(bench: Bench) -> None:
    run_id = await bench.submit()
    await bench.publish(run_id, 0, status(RunStatus.RUNNING))
    await bench.publish(run_id, 1, said("kept\n"))
    assert (await bench.events(run_id))["truncated"] is False
    purge = bench.link.jetstream.purge_stream
    await purge(NAMES.events_stream, subject=NAMES.events_subject("w1", run_id), keep=1)
    page = await bench.events(run_id)
    assert ([event["text"] for event in page["events"]], page["truncated"]) == (["kept\n"], True)
    await purge(NAMES.events_stream, subject=NAMES.events_subject("w1", run_id))
    await bench.end(run_id)
    page = await bench.events(run_id)
    assert (page["events"], page["truncated"]) == ([], True)


async def test_output_is_read_as_text_and_chosen_by_task_stream_and_attempt(bench: Bench) -> None:
    run_id = await bench.submit()
    await bench.publish(run_id, 0, status(RunStatus.RUNNING), said("Grüße, "), said("warn\n", stream="stderr"))
    await bench.publish(run_id, 1, said("世界 😀\n"), said("other\n", task="count"), status(RunStatus.PENDING))
    await bench.publish(run_id, 0, said("second\n"), attempt=2)
    await bench.end(run_id, attempt=2)
    assert await bench.log(run_id) == "warn\nGrüße, 世界 😀\nother\nsecond\n"
    assert await bench.log(run_id, task="count") == "other\n"
    assert await bench.log(run_id, stream="stderr") == "warn\n"
    assert await bench.log(run_id, attempt=1, task="greet", stream="stdout") == "Grüße, 世界 😀\n"
    assert await bench.log(run_id, task="nobody") == ""
    assert (await bench.log(run_id, prefix=1)).splitlines() == [
        "[greet stderr] warn",
        "[greet] Grüße, 世界 😀",
        "[count] other",
        "[greet attempt 2] second",
    ]


async def test_a_large_log_arrives_whole(bench: Bench) -> None:
    run_id = await bench.submit()
    chunk = "0123456789abcde\n" * 2048
    for batch in range(32):
        await bench.publish(run_id, batch, *(said(chunk) for _ in range(8)))
    text = await bench.log(run_id)
    assert len(text) == 8 * 1024 * 1024
    assert text == chunk * 256
    # A page of events is bounded by what it says, too.
    page = await bench.events(run_id, limit=5000)
    assert len(page["events"]) == 32
    assert page["next"] is not None


async def test_a_follower_that_connects_before_the_run_begins_gets_all_output_until_its_end(bench: Bench) -> None:
    run_id = await bench.submit()
    async with bench.follow(run_id) as feed:
        await bench.claim(run_id)
        await bench.publish(run_id, 0, status(RunStatus.RUNNING), said("one\n"))
        first = await heard(feed)
        assert first["event"] == "log"
        assert first["data"] == {
            **{"task": "greet", "stream": "stdout", "level": None, "text": "one\n", "attempt": 1},
            **{"at": pytest.approx(time.time(), abs=30)},
        }
        begun = time.monotonic()
        await bench.publish(run_id, 1, said("two\n"))
        assert (await heard(feed))["data"]["text"] == "two\n"
        assert time.monotonic() - begun < 10
        # The state is seen before the last words: the follower waits for them.
        await bench.end(run_id)
        await bench.publish(run_id, 2, said("three\n"), status(RunStatus.COMPLETED))
        assert (await heard(feed))["data"]["text"] == "three\n"
        end = await heard(feed)
        assert (end["event"], end["data"]) == (
            "end",
            {"run_id": run_id, "status": "COMPLETED", "attempt": 1, "error": None},
        )
        assert await feed.next() is None


async def test_a_follower_that_reconnects_gets_every_entry_once(bench: Bench) -> None:
    run_id = await bench.submit()
    await bench.publish(run_id, 0, *(said(str(number)) for number in range(3)))
    await bench.publish(run_id, 1, *(said(str(number)) for number in range(3, 6)), status(RunStatus.COMPLETED))
    await bench.end(run_id)
    async with bench.follow(run_id) as feed:
        events = []
        while (event := await feed.next()) is not None:
            events.append(event)
    assert [event["event"] for event in events] == ["log"] * 6 + ["end"]
    for number, event in enumerate(events[:6]):
        async with bench.follow(run_id, after=event["id"]) as feed:
            rest = []
            while (later := await feed.next()) is not None:
                rest.append(later)
        assert [later["data"]["text"] for later in rest[:-1]] == [str(text) for text in range(number + 1, 6)]
        assert rest[-1]["event"] == "end"


async def test_a_follower_gets_only_what_it_filters_for_and_the_end_of_a_run_that_never_began(bench: Bench) -> None:
    run_id = await bench.submit()
    async with bench.follow(run_id, task="count", stream="stderr") as feed:
        await bench.publish(run_id, 0, said("no"), said("no", task="count"))
        await bench.publish(run_id, 1, said("yes", task="count", stream="stderr"))
        assert (await heard(feed))["data"]["text"] == "yes"
    waiting = await bench.submit()
    async with bench.follow(waiting) as feed:
        await bench.client.post(f"/runs/{waiting}/cancel")
        end = await heard(feed)
        assert (end["event"], end["data"]["status"], end["data"]["attempt"]) == ("end", "CANCELLED", 0)
        assert await feed.next() is None


@pytest.mark.own_nats
@pytest.mark.parametrize("wiped", [False, True])
async def test_a_follower_goes_on_when_nats_is_back(own_bench: Bench, nats_server: NatsServer, wiped: bool) -> None:
    run_id = await own_bench.submit()
    await own_bench.claim(run_id)
    # Events of a worker are shown if it is known to have claimed the run: after a wipe, only the ledger knows that.
    await eventually(lambda: own_bench.is_listed(run_id, RunStatus.RUNNING), what="the claim in the ledger")
    async with own_bench.follow(run_id) as feed:
        for batch in range(5):
            await own_bench.publish(run_id, batch, said(f"{batch}"))
            last = await heard(feed)
            assert last["data"]["text"] == f"{batch}"
        nats_server.kill()
        if wiped:
            nats_server.wipe()
        nats_server.start()

        async def published() -> bool:
            try:
                await own_bench.publish(run_id, 5, said("back"))
            except NatsUnavailable:
                return False
            return True

        await eventually(published, within=20)
        assert (await heard(feed))["data"]["text"] == "back"

        async def ended() -> bool:
            try:
                if await own_bench.runs.get(run_id) is None:
                    return False  # lost, and not made anew yet
                await own_bench.end(run_id)
            except (NatsUnavailable, WrongRevision):
                return False
            return True

        await eventually(ended, what="the run ended")
        assert (await heard(feed))["event"] == "end"
    # A client that comes back with a place in the lost stream has not seen the new one, however long it is.
    for batch in range(6, 12):
        await own_bench.publish(run_id, batch, said(f"{batch}"))
    async with own_bench.follow(run_id, after=last["id"]) as feed:
        assert [(await heard(feed))["data"]["text"] for _ in range(7)] == ["back", *map(str, range(6, 12))]
        assert (await heard(feed))["event"] == "end"
    page = await own_bench.events(run_id, after=last["id"])
    assert [event["text"] for event in page["events"]] == ["back", *map(str, range(6, 12))]


async def test_many_followers_of_one_run_get_the_same(bench: Bench) -> None:
    run_id = await bench.submit()

    async def hear_all() -> str:
        async with bench.follow(run_id) as feed:
            text = ""
            while (event := await heard(feed))["event"] == "log":
                text += event["data"]["text"]
                if text == "0":
                    ready.release()
            return text

    ready = asyncio.Semaphore(0)
    followers = [asyncio.create_task(hear_all()) for _ in range(30)]
    await bench.publish(run_id, 0, said("0"))
    for _ in followers:
        await ready.acquire()
    for batch in range(1, 10):
        await bench.publish(run_id, batch, said(str(batch)))
    await bench.publish(run_id, 10, status(RunStatus.FAILED))
    await bench.end(run_id, status=RunStatus.FAILED)
    assert set(await asyncio.gather(*followers)) == {"0123456789"}


async def test_a_result_is_there_when_the_run_has_ended_or_as_far_as_there_is_one(bench: Bench) -> None:
    run_id = await bench.submit()
    answer = await bench.client.get(f"/runs/{run_id}/result")
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "CONFLICT"
    assert "PENDING" in answer.json()["detail"]
    partial = await bench.client.get(f"/runs/{run_id}/result?partial=1")
    assert partial.json() == {
        **{"run_id": run_id, "status": "PENDING", "result": None, "outputs": {}, "truncated": False, "error": None}
    }
    records = {"greet": {"state": "SUCCEEDED", "output": 2**70}, "shout": {"state": "FAILED"}}
    await bench.end(run_id, result={"said": "hello"}, task_records=records, result_truncated=True)
    ended = await bench.client.get(f"/runs/{run_id}/result")
    assert ended.json() == {
        **{"run_id": run_id, "status": "COMPLETED", "result": {"said": "hello"}, "outputs": {"greet": 2**70}},
        **{"truncated": True, "error": None},
    }


async def test_nobody_reads_what_is_not_theirs_or_not_there(bench: Bench) -> None:
    run_id = await bench.submit()
    for what in ("events", "logs", "logs?follow=1", "result"):
        for path, headers in (
            (f"/runs/{run_id}/{what}", {HEADER_TENANT_ID: "other"}),
            (f"/runs/6f1c1a34-8c0e-4e37-9b1b-000000000000/{what}", {}),
            (f"/runs/>/{what}", {}),
        ):
            answer = await bench.client.get(path, headers=headers)
            assert answer.status_code == 404, path
            assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0005"


async def test_a_bad_query_is_refused(bench: Bench) -> None:
    run_id = await bench.submit()
    for query in (
        *("events?limit=0", "events?limit=5001", "events?after=-1", "events?after=x", "events?attempt=0"),
        *("logs?stream=both", "logs?follow=maybe", "logs?attempt=0", "result?partial=x"),
    ):
        answer = await bench.client.get(f"/runs/{run_id}/{query}")
        assert answer.status_code == 422, query
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0002"


@pytest.mark.own_nats
async def test_a_timeline_is_unavailable_while_nats_is_away(own_bench: Bench, nats_server: NatsServer) -> None:
    run_id = await own_bench.submit()
    nats_server.pause()
    for what in ("events", "logs", "logs?follow=1", "result"):
        answer = await own_bench.client.get(f"/runs/{run_id}/{what}", timeout=20)
        assert answer.status_code == 503, what
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
    nats_server.kill()
    for what in ("events", "logs", "logs?follow=1", "result"):
        assert (await own_bench.client.get(f"/runs/{run_id}/{what}", timeout=20)).status_code == 503, what


async def test_a_position_of_a_lost_stream_starts_over(nats_server: NatsServer) -> None:
    async with ready_link(nats_server.url) as link:
        await ensure_stream(link.jetstream, events_stream_config(NAMES, EventsLimits()))
        await publish(link, "r", 0, said("one"), said("two"))

        async def everybody(wanted: Set[Writer]) -> Set[Writer]:
            return wanted

        def texts(position: int) -> TimelineReader:
            return TimelineReader(link, NAMES, "r", find_writers=everybody, position=position)

        entries = await texts(0).read()
        assert [entry.event.text for entry in entries] == ["one", "two"]
        assert [entry.event.text for entry in await texts(entries[0].position).read()] == ["two"]
        assert await texts(entries[1].position).read() == []
        beyond = entries[1].position << 10
        assert [entry.event.text for entry in await texts(beyond).read()] == ["one", "two"]

"""Lists over HTTP: arrays, walks with a cursor, and differences; none of them misses a run or shows one twice."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from fleet_contracts.names import HEADER_TENANT_ID
from fleet_contracts.status import RunStatus
from fleet_runs_api.accept import acceptance
from fleet_runs_api.ledger.documents import NewRun
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, accepting, runs_running, runs_settings, writing

Item = dict[str, Any]


@pytest.fixture(params=["sqlite", "postgresql"])
async def service(
    request: pytest.FixtureRequest, nats_server: NatsServer, tmp_path: Path
) -> AsyncIterator[RunsUnderTest]:
    more = {"runs_database_url": request.getfixturevalue("postgres_url")} if request.param == "postgresql" else {}
    # Nobody holds the claims of these tests: they are not to be taken back meanwhile.
    async with runs_running(runs_settings(nats_server, tmp_path, run_lost_after_sec=60.0, **more)) as service:
        yield service


async def ask(service: RunsUnderTest, **query: Any) -> Any:
    answer = await service.client.get("/runs", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def walk(service: RunsUnderTest, **query: Any) -> list[Item]:
    """All pages from the first to the last, as one list."""
    items: list[Item] = []
    page = await ask(service, **{"cursor": "", **query})
    while True:
        assert len(page["items"]) <= query.get("limit", 50)
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        page = await ask(service, **{**query, "cursor": page["next_cursor"]})


async def finish(service: RunsUnderTest, run_id: str, status: RunStatus = RunStatus.COMPLETED) -> None:
    await service.claim(run_id)
    await service.change(run_id, lambda snapshot: snapshot.finish(status, now=time.time()))


def ids(items: list[Item]) -> list[str]:
    return [item["run_id"] for item in items]


async def test_a_plain_list_is_an_array_with_the_rest_in_headers(service: RunsUnderTest) -> None:
    runs = [await service.submit(flow, tag=tag) for flow, tag in (("a", "x"), ("b", "x"), ("b", "y"))]
    answer = await service.client.get("/runs", params={"limit": 2})
    assert ids(answer.json()) == [runs[2], runs[1]]
    assert answer.headers["x-total-count"] == "3"
    rest = await ask(service, cursor=answer.headers["x-next-cursor"])
    assert (ids(rest["items"]), rest["next_cursor"], rest["total"]) == ([runs[0]], None, 3)
    last = await service.client.get("/runs", params={"flow": "b", "tag": "x"})
    assert (last.headers["x-total-count"], last.headers.get("x-next-cursor")) == ("1", None)
    searched = await service.client.get("/runs", params={"q": "b"})
    assert len(searched.json()) == 2
    assert "x-total-count" not in searched.headers


async def test_several_values_of_a_filter_may_be_repeated_or_joined(service: RunsUnderTest) -> None:
    a, b, c = [await service.submit(flow, tag=f"t-{flow}") for flow in "abc"]
    await service.change(b, lambda s: s.request_cancel(by=None, now=time.time()))
    await service.until_listed(b, status="CANCELLING")
    assert ids(await ask(service, flow=["a", "c"])) == [c, a]
    assert ids(await ask(service, tag=["t-a", "t-b"])) == ids(await ask(service, tag="t-a,t-b")) == [b, a]
    assert ids(await ask(service, status=["PENDING", "CANCELLING"], flow=["b", "c"])) == [c, b]
    assert ids(await ask(service, status="PENDING,RUNNING")) == [c, a]
    page = await ask(service, status="PENDING,CANCELLING", flow=["a", "b"], cursor="")
    assert (ids(page["items"]), page["total"]) == ([b, a], 2)


async def test_labels_are_found_whole_wherever_they_stand(service: RunsUnderTest) -> None:
    labels = [["red", "a,b"], ["blue"], ['re"d', "Red"], ["credit", "b"], []]
    runs = [await service.submit(tags=some) for some in labels]
    for wanted, found in (
        ("red", [0]),
        ('re"d', [2]),
        ("Red", [2]),
        ("re", []),
        ("%", []),
        ("blue,b", [3, 1]),
        ("a,b", [3, 0]),
        (["red", "credit"], [3, 0]),
    ):
        assert ids(await ask(service, tags=wanted)) == [runs[place] for place in found], wanted
    page = await ask(service, cursor="", tags="red", status="PENDING")
    assert (ids(page["items"]), page["total"]) == ([runs[0]], None)
    assert ids((await ask(service, updated_after=1, tags="blue"))["items"]) == [runs[1]]
    # The tag that routes a run describes it, too, unless others were given.
    routed = await service.submit(tag="gpu")
    await service.submit(tag="gpu", tags=["other"])
    assert ids(await ask(service, tags="gpu")) == [routed]


async def test_moments_are_unix_seconds_or_times_with_or_without_an_offset(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    [run] = await ask(service)
    before = datetime.fromtimestamp(run["submitted_at"] - 60, UTC)
    tokyo = before.astimezone(timezone(timedelta(hours=9)))
    spellings = [
        before.timestamp(),
        before.isoformat(),
        f"{before:%Y-%m-%dT%H:%M:%SZ}",
        before.replace(tzinfo=None).isoformat(" "),
        f"{before:%Y-%m-%d}",
        tokyo.isoformat(),
        tokyo.isoformat().replace("+", " "),  # as it arrives if nobody has escaped it
    ]
    for moment in spellings:
        assert ids(await ask(service, since=moment)) == [run_id], moment
        assert ids(await ask(service, until=moment)) == [], moment
        assert ids((await ask(service, updated_after=moment))["items"]) == [run_id], moment


async def test_a_summary_has_the_rules_of_a_run_and_why_it_waits(service: RunsUnderTest) -> None:
    later = time.time() + 600
    await service.submit("a", not_before=later, deadline_at=later + 60)
    await service.submit("b", tag="gpu")
    waiting, scheduled = await ask(service)
    assert (scheduled["not_before"], scheduled["deadline_at"]) == (later, later + 60)
    assert (scheduled["failures"], scheduled["rerun_of"]) == (0, None)
    assert scheduled["waiting_reason"] == "schedule"
    assert waiting["waiting_reason"] == "no_worker"
    assert "gpu" in waiting["waiting_detail"]


async def test_pages_may_show_whole_runs(service: RunsUnderTest) -> None:
    runs = [await service.submit(params={"n": n}) for n in range(3)]
    items = await walk(service, include="full", limit=2)
    assert ids(items) == runs[::-1]
    assert [item["params"] for item in items] == [{"n": 2}, {"n": 1}, {"n": 0}]
    assert all("task_records" in item and "ack_subject" not in item for item in items)
    changed = await eventually(lambda: walk(service, include="full", updated_after=0.0, limit=2, cursor=""))
    assert set(ids(changed)) <= set(runs)


async def test_a_cursor_is_good_only_for_its_own_query_and_tenant(service: RunsUnderTest) -> None:
    for _ in range(3):
        await service.submit()
        await service.client.post("/runs", json={"flow_name": "hello"}, headers={HEADER_TENANT_ID: "acme"})
    cursor = (await ask(service, cursor="", limit=1, flow="hello"))["next_cursor"]
    assert len((await ask(service, cursor=cursor, limit=2, flow="hello"))["items"]) == 2
    page = await eventually(lambda: _difference(service, least=3, limit=1))
    following = page["next_cursor"]
    assert len((await ask(service, cursor=following))["items"]) == 2
    assert len((await ask(service, cursor=following, updated_after=1.0))["items"]) == 2

    refused: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"cursor": cursor}, {}),
        ({"cursor": cursor, "flow": "hello", "status": "PENDING"}, {}),
        ({"cursor": cursor, "flow": "hello"}, {HEADER_TENANT_ID: "acme"}),
        ({"cursor": cursor, "flow": "hello", "updated_after": 1.0}, {}),
        ({"cursor": cursor[:-2] + "xx", "flow": "hello"}, {}),
        ({"cursor": "nonsense"}, {}),
        ({"cursor": following, "updated_after": 2.0}, {}),
    ]
    for query, headers in refused:
        answer = await service.client.get("/runs", params=query, headers=headers)
        assert answer.status_code == 422, query
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0017"
        assert answer.json()["detail"] == "The cursor is not valid for this query; start again without it."


async def _difference(service: RunsUnderTest, *, least: int, **query: Any) -> Any:
    """The first page of what has changed since the beginning, once it has so many runs."""
    everything = await walk(service, updated_after=1.0)
    return await ask(service, updated_after=1.0, **query) if len(everything) >= least else None


BAD_QUERIES = [
    *(
        "updated_after=soon",
        "updated_after=-1",
        "updated_after=inf",
        "since=nan",
        "until=tomorrow",
        "until=2026-13-01",
        "since=3001-01-01",
        "until=1969-12-31T23:59:59Z",
        "until=2026-01-01T00:00:00%2B99:00",
        "since=2&until=1",
    ),
    *(
        "status=PENDING,DONE",
        "tag=a,b.c",
        "flow=",
        "flow=%00",
        "q=",
        "q=%00",
        "tags=",
        "tags=%00",
        "tags=" + "x" * 65,
    ),
    "workflow_yaml_sha256=" + "0" * 65,
    "cursor=" + "A" * 501,
    "&".join(f"flow=f{n}" for n in range(21)),
]


async def test_a_bad_query_is_refused_with_a_sentence_about_its_parameter(service: RunsUnderTest) -> None:
    for query in BAD_QUERIES:
        answer = await service.client.get(f"/runs?{query}")
        assert answer.status_code == 422, query
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0017"
        assert query.partition("=")[0] in answer.json()["detail"]


async def test_differences_have_each_change_and_where_the_next_begins(service: RunsUnderTest) -> None:
    first, second = await service.submit("a"), await service.submit("b")

    async def settled(after: float) -> float:
        """Where the next difference begins once it shows nothing of this one again."""

        async def look() -> float | None:
            page = await ask(service, updated_after=after)
            assert page["next_cursor"] is None
            assert page["total"] is None
            assert page["updated_until"] >= after
            again = await ask(service, updated_after=page["updated_until"])
            return None if again["items"] else float(page["updated_until"])

        return await eventually(look, what="a difference that is settled")

    assert ids((await ask(service, updated_after=0.0))["items"]) == [first, second]
    after = await settled(0.0)
    await finish(service, second, RunStatus.FAILED)
    await service.until_listed(second, status="FAILED")
    items = (await ask(service, updated_after=after))["items"]
    assert [(item["run_id"], item["status"]) for item in items] == [(second, "FAILED")]
    after = await settled(after)
    third = await service.submit("c")
    assert ids((await ask(service, updated_after=after))["items"]) == [third]
    assert ids(await walk(service, updated_after=0.0, status="PENDING", limit=1)) == [first, third]
    assert await ask(service, updated_after=time.time() + 60) == {
        "items": [],
        "next_cursor": None,
        "total": None,
        "updated_until": pytest.approx(time.time() + 60, abs=5),
    }


async def test_a_difference_waits_for_a_change_whose_commit_takes_long(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    await eventually(lambda: walk(service, updated_after=1.0))
    update = text("UPDATE runs SET changed_at = :now, attempt = 9 WHERE run_id = :run_id")
    if service.database.is_sqlite:
        # Its one writer is the service itself: let a batch of its own be slow.
        commits = service.app.state.service._commits
        begun, may_end = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow_batch(transaction: Any, items: Any) -> list[None]:
            transaction.execute(update, {"now": time.time(), "run_id": run_id})
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result(timeout=60)
            return [None for _ in items]

        writing = commits.write_soon(slow_batch, None)
        await begun.wait()
        after = await _poll_for(service, 1.0)
        may_end.set()
        await writing
    else:
        with service.database.writer.connect() as connection:
            connection.execute(update, {"now": time.time(), "run_id": run_id})
            after = await _poll_for(service, 1.0)
            connection.commit()
    seen = await eventually(lambda: walk(service, updated_after=after), what="the change that took long")
    assert [(item["run_id"], item["attempt"]) for item in seen] == [(run_id, 9)]


async def test_a_run_of_a_replica_that_stood_still_before_its_commit_is_in_the_next_difference(
    nats_server: NatsServer, tmp_path: Path, postgres_url: str, new_run: NewRun
) -> None:
    async with runs_running(runs_settings(nats_server, tmp_path, runs_database_url=postgres_url)) as service:
        with writing(service.database) as replica:
            acceptance.accept(replica, [accepting(new_run)])
            after = await _poll_for(service, 1.0)
        assert ids((await ask(service, updated_after=after))["items"]) == [new_run.job.run_id]


async def _poll_for(service: RunsUnderTest, seconds: float) -> float:
    """Follow the differences for a while in which no change can be seen; where the next one begins."""
    after: float = (await ask(service, updated_after=1.0))["updated_until"]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        page = await ask(service, updated_after=after)
        assert all(item["attempt"] == 0 for item in page["items"])
        after = page["updated_until"]
    return after


class Traffic:
    """Many at once submit runs, claim and finish them; what was accepted is known at any moment."""

    def __init__(self, *services: RunsUnderTest, clients: int, runs_each: int) -> None:
        self.accepted: list[str] = []
        self._services = services
        self._runs_each = runs_each
        self._clients = [asyncio.create_task(self._work(number)) for number in range(clients)]

    @property
    def goes_on(self) -> bool:
        return not all(client.done() for client in self._clients)

    async def end(self) -> None:
        await asyncio.gather(*self._clients)

        async def all_known() -> bool:
            done = self._services[0].rows("SELECT count(*) FROM runs WHERE finished_at IS NOT NULL")[0][0]
            return bool(done == len(self.accepted))

        await eventually(all_known, within=30, what="the ledger knowing every end")

    async def _work(self, number: int) -> None:
        service = self._services[number % len(self._services)]
        for turn in range(self._runs_each):
            run_id = await service.submit(f"flow-{turn % 3}")
            self.accepted.append(run_id)
            await finish(service, run_id, RunStatus.FAILED if turn % 5 == number % 5 else RunStatus.COMPLETED)


class Follower:
    """Keeps the state of the runs as the differences have it."""

    def __init__(self, service: RunsUnderTest, *, of_replicas: bool = False) -> None:
        # Another replica may commit a change after this one has begun a difference that ends later than the change:
        # then the run comes again, with its new state.
        self._of_replicas = of_replicas
        self.known: dict[str, Item] = {}
        self.polls = 0
        self._service = service
        self._after = 0.0

    async def poll(self) -> None:
        page = await ask(self._service, updated_after=self._after, limit=7)
        until, items = page["updated_until"], page["items"]
        while page["next_cursor"]:
            page = await ask(self._service, cursor=page["next_cursor"], limit=7)
            assert page["updated_until"] == until
            items += page["items"]
        if not self._of_replicas:
            assert len(set(ids(items))) == len(items), "a run was shown twice in one difference"
        shown: dict[str, Item] = {}
        for item in items:
            assert shown.get(item["run_id"]) != item, "a run was shown twice alike in one difference"
            shown[item["run_id"]] = item
        self.known.update(shown)
        self._after, self.polls = until, self.polls + 1

    async def follow_to_the_end(self, traffic: Traffic) -> None:
        while traffic.goes_on:
            await self.poll()
        await traffic.end()
        final = {item["run_id"]: item for item in await walk(self._service)}

        async def is_up_to_date() -> bool:
            await self.poll()
            return self.known == final

        await eventually(is_up_to_date, what="the follower knowing the final state of all runs")
        assert self.polls >= 3
        assert set(self.known) == set(traffic.accepted)


async def test_a_walk_under_load_shows_every_run_accepted_before_it_exactly_once(service: RunsUnderTest) -> None:
    traffic = Traffic(service, clients=6, runs_each=40)
    walks = 0
    while traffic.goes_on:
        accepted = set(traffic.accepted)
        shown = Counter(ids(await walk(service, limit=7)))
        assert not accepted - shown.keys(), "a run is missing"
        assert set(shown.values()) <= {1}, "a run was shown twice"
        walks += 1
    await traffic.end()
    assert walks >= 3
    final = await walk(service, limit=7)
    assert set(ids(final)) == set(traffic.accepted)
    counted = await ask(service, cursor="", flow=["flow-0", "flow-1"], status="FAILED")
    fitting = [i for i in final if i["flow_name"] in ("flow-0", "flow-1") and i["status"] == "FAILED"]
    assert counted["total"] == len(fitting)


async def test_a_client_that_follows_differences_ends_with_the_state_of_every_run(service: RunsUnderTest) -> None:
    await Follower(service).follow_to_the_end(Traffic(service, clients=6, runs_each=40))


async def _read_own_writes(writing: RunsUnderTest, reading: RunsUnderTest) -> None:
    after = (await ask(reading, updated_after=time.time() - 1))["updated_until"]
    for _ in range(10):
        run_id = await writing.submit()
        page = await ask(reading, updated_after=after, limit=200)
        assert run_id in ids(page["items"]), "an accepted run is missing"
        after = page["updated_until"]


async def test_an_accepted_run_is_in_the_very_next_difference(service: RunsUnderTest) -> None:
    await asyncio.gather(*(_read_own_writes(service, service) for _ in range(4)))


async def test_replicas_take_each_others_cursors_and_show_each_others_changes(
    nats_server: NatsServer, tmp_path: Path, postgres_url: str
) -> None:
    settings = runs_settings(nats_server, tmp_path, run_lost_after_sec=60.0, runs_database_url=postgres_url)
    async with runs_running(settings) as one, runs_running(settings) as other:
        await Follower(one, of_replicas=True).follow_to_the_end(Traffic(one, other, clients=6, runs_each=40))
        await asyncio.gather(*(_read_own_writes(one, other) for _ in range(4)))
        page = await ask(one, cursor="", limit=100)
        rest = await ask(other, cursor=page["next_cursor"], limit=200)
        assert len({*ids(page["items"]), *ids(rest["items"])}) == 280

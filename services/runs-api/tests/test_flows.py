"""Reading flows: what live workers offer, in which they disagree, what is broken, and every change of it."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from fleet_contracts.catalogue import BrokenSource, FlowDefaults, FlowGraph, GraphEdge, GraphNode
from fleet_contracts.retry import RetryPolicy
from fleet_kit.nats.stores import kv
from fleet_runs_api.repair import left_catalogues
from fleet_testkit.buckets import Bucket
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest
from .offers import GREETING, flow, offer

GRAPH = FlowGraph(nodes=[GraphNode(name="a"), GraphNode(name="b")], edges=[GraphEdge(source="a", target="b")])
BROKEN = BrokenSource(place="etl.py", exc_type="ModuleNotFoundError", message="No module named 'pandas'", line=3)


async def listed(service: RunsUnderTest) -> dict[str, Any]:
    answer = await service.client.get("/flows")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def until_listed(service: RunsUnderTest, *names: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        found = await listed(service)
        return found if [one["name"] for one in found["flows"]] == list(names) else None

    found = await eventually(look, what=f"the flows {names}")
    assert found
    return found


async def test_the_list_has_each_flow_once_and_each_broken_source_with_its_workers(service: RunsUnderTest) -> None:
    assert await listed(service) == {
        "flows": [],
        "broken": [],
        "reload_failures": [],
        "open_tags": [],
        "truncated": [],
    }
    await offer(service, flow(version="1.0"), flow("aside"), worker_id="w1", broken=[BROKEN], reload_error="bad edit")
    newer = flow(version="1.1", description="Greets somebody.")
    await offer(service, newer, worker_id="w2", tags=["gpu"], loaded_at=2.0, broken=[BROKEN], is_open=True)
    assert await until_listed(service, "aside", "greet") == {
        "flows": [
            {
                "name": "aside",
                "description": None,
                "tags": ["default"],
                "workers": 1,
                "versions": [],
                "differs": [],
            },
            {
                "name": "greet",
                "description": "Greets somebody.",
                "tags": ["default", "gpu"],
                "workers": 2,
                "versions": ["1.0", "1.1"],
                "differs": ["description", "version"],
            },
        ],
        "broken": [BROKEN.model_dump() | {"workers": ["w1", "w2"]}],
        "reload_failures": [{"error": "bad edit", "workers": ["w1"]}],
        "open_tags": ["gpu"],
        "truncated": [],
    }


async def test_a_flow_in_full_is_that_of_the_worker_that_loaded_last_and_says_who_differs(
    service: RunsUnderTest,
) -> None:
    defaults = FlowDefaults(retry=RetryPolicy(max_attempts=3), timeout_sec=600, tag="default")
    await offer(service, flow("a/b c", graph=GRAPH, defaults=defaults), loaded_at=2.0)
    await offer(service, flow("a/b c", params_schema=None), worker_id="w2", tags=["gpu"])
    await until_listed(service, "a/b c")
    answer = await service.client.get("/flows/a%2Fb%20c")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["params_schema"], found["graph"]) == (GREETING, GRAPH.model_dump())
    assert found["defaults"] == defaults.model_dump()
    assert found["differs"] == ["defaults", "graph", "params_schema"]
    shown = [(one["worker_id"], one["tags"], one["differs"]) for one in found["offers"]]
    assert shown == [
        ("w1", ["default"], []),
        ("w2", ["gpu"], ["params_schema", "graph", "defaults"]),
    ]
    source = {"kind": "file", "place": "greet.py", "line": None, "package": None, "version": None}
    assert found["offers"][0]["source"] == source


async def test_only_live_workers_count(service: RunsUnderTest) -> None:
    await offer(service, flow("gone"), silent_in=1.5)
    await offer(service, flow("stays"), worker_id="w2")
    await until_listed(service, "gone", "stays")
    await until_listed(service, "stays")
    answer = await service.client.get("/flows/gone")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "no live worker offers this flow; those that offered it are gone"


async def test_a_flow_that_is_not_offered_is_404_with_near_names_and_files_that_may_hold_it(
    service: RunsUnderTest,
) -> None:
    await offer(service, flow(), broken=[BROKEN])
    await until_listed(service, "greet")
    answer = await service.client.get("/flows/gret")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "NOT_FOUND"
    assert answer.json()["detail"] == (
        'no live worker offers this flow; did you mean "greet"?; '
        "could not be loaded: etl.py (ModuleNotFoundError: No module named 'pandas')"
    )


@pytest.mark.parametrize("path", ["/flows", "/flows/events", "/flows/greet"])
async def test_flows_need_the_scope_of_workers_and_no_parameter_is_ignored(service: RunsUnderTest, path: str) -> None:
    answer = await service.client.get(path, headers={"X-Pyoco-Scopes": "runs:read runs:write"})
    assert (answer.status_code, answer.json()["error"]["meta"]["missing_scope"]) == (403, "workers:read")
    assert (await service.client.get(path, params={"timeout": "1"})).status_code == 422


async def test_a_watcher_gets_the_list_and_again_when_it_has_changed(service: RunsUnderTest) -> None:
    views = service.app.state.service.flows

    async def next_of(news: AsyncIterator[Any]) -> tuple[str, list[str]]:
        async with asyncio.timeout(30):
            event_id, encoded = await anext(news)
        return event_id, [one["name"] for one in orjson.loads(encoded)["flows"]]

    news = views.follow(last_event_id="", seconds=60)
    assert (await next_of(news))[1] == []
    await offer(service, flow("brief"), silent_in=2.0)
    first_id, names = await next_of(news)
    assert names == ["brief"]
    # A change of what the list does not show is an event as well: readers of one flow wait for it.
    await offer(service, flow("brief", params_schema=None), silent_in=2.0)
    second_id, names = await next_of(news)
    assert (names, second_id == first_id) == (["brief"], False)
    # Falling silent writes nothing.
    assert (await next_of(news))[1] == []
    await news.aclose()


async def test_a_watcher_that_comes_back_is_told_only_what_is_new(service: RunsUnderTest) -> None:
    await offer(service, flow())
    await until_listed(service, "greet")
    one_second = {"timeout_sec": 1}
    answer = await service.client.get("/flows/events", params=one_second)
    assert answer.headers["content-type"].startswith("text/event-stream")
    event_id, kind, data = answer.text.strip().split("\n")
    assert kind == "event: flows"
    shown = orjson.loads(data.removeprefix("data: "))
    assert shown.pop("ts") == pytest.approx(time.time(), abs=30)
    assert shown == await listed(service)
    again = await service.client.get(
        "/flows/events", params=one_second, headers={"Last-Event-ID": event_id.removeprefix("id: ")}
    )
    assert (again.status_code, again.text) == (200, "")


async def test_the_catalogue_of_a_worker_whose_record_is_gone_is_deleted(
    service: RunsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_catalogues, "_INTERVAL_SECONDS", 0.0)
    await offer(service, flow())
    await offer(service, flow("another"), worker_id="w2")
    parts, bucket = service.app.state.service, Bucket(service.link, "pyoco_flows")
    tidying = parts._retention._left_catalogues
    await kv.Bucket(service.link, "pyoco_workers").delete("w1")
    await eventually(lambda: parts._fleet.worker("w1") is None, what="the record gone")

    async def is_deleted() -> bool:
        await tidying.delete()
        return await bucket.get("w1") is None

    await eventually(is_deleted, what="the catalogue deleted")
    assert await bucket.get("w2") is not None

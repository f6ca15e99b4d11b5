"""Requests are counted by route template, with a bounded number of series."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from prometheus_client import CollectorRegistry

from fleet_kit.errors import NatsUnavailable
from fleet_kit.http.app import create_app, new_router
from fleet_kit.telemetry.metrics import new_registry
from fleet_testkit.apps import running
from fleet_testkit.waiting import eventually

router = new_router()


@router.get("/things/{name}")
async def read_thing(name: str) -> str:
    if name == "away":
        raise NatsUnavailable()
    if name == "broken":
        raise RuntimeError("broken")
    return name


@router.get("/stream")
async def stream(request: Request) -> Response:
    release: asyncio.Event = request.app.state.release

    async def events() -> AsyncIterator[bytes]:
        yield b"event: first\n\n"
        await release.wait()

    return StreamingResponse(events(), media_type="text/event-stream")


@router.post("/express")
async def express() -> None:
    raise AssertionError("answered past the framework")


async def answer_express(_: Request) -> Response:
    return Response(status_code=204)


@pytest.fixture
def registry() -> CollectorRegistry:
    return new_registry("tested")


@pytest.fixture
def app(registry: CollectorRegistry) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.release = asyncio.Event()
        yield

    async def readiness() -> dict[str, str]:
        return {}

    return create_app(
        component="tested",
        routers=[router],
        lifespan=lifespan,
        readiness=readiness,
        registry=registry,
        express={("POST", "/express"): answer_express},
    )


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with running(app) as client:
        yield client


def counted(registry: CollectorRegistry) -> dict[tuple[str, str, str], float]:
    samples = [s for metric in registry.collect() for s in metric.samples if s.name == "pyoco_http_requests_total"]
    assert {sample.labels["component"] for sample in samples} <= {"tested"}
    return {(s.labels["method"], s.labels["route"], s.labels["code"]): s.value for s in samples}


async def test_requests_are_counted_by_the_template_of_their_route(
    client: httpx.AsyncClient, registry: CollectorRegistry
) -> None:
    for path in ("/things/a", "/things/b", "/things/away", "/things/broken"):
        await client.get(path)
    await client.post("/things/a")
    await client.post("/express")
    assert counted(registry) == {
        ("GET", "/things/{name}", "200"): 2,
        ("GET", "/things/{name}", "503"): 1,
        ("GET", "/things/{name}", "500"): 1,
        ("POST", "/things/{name}", "405"): 1,
        ("POST", "/express", "204"): 1,
    }
    labels = {"component": "tested", "method": "GET", "route": "/things/{name}"}
    assert registry.get_sample_value("pyoco_http_request_duration_seconds_count", labels) == 4


async def test_addresses_and_methods_that_anybody_invents_make_one_series(
    client: httpx.AsyncClient, registry: CollectorRegistry
) -> None:
    for number in range(50):
        await client.request(f"METHOD{number}", f"/nowhere/{number}")
    assert counted(registry) == {("other", "unmatched", "404"): 50}


async def test_probes_and_scrapes_are_not_counted(client: httpx.AsyncClient, registry: CollectorRegistry) -> None:
    for path in ("/health", "/ready", "/metrics"):
        assert (await client.get(path)).status_code == 200
    assert counted(registry) == {}


async def test_a_stream_is_seen_while_it_is_open_and_its_time_is_not_taken(
    app: FastAPI, client: httpx.AsyncClient, registry: CollectorRegistry
) -> None:
    def open_streams() -> float | None:
        return registry.get_sample_value("pyoco_http_open_streams", {"component": "tested", "route": "/stream"})

    listening = asyncio.create_task(client.get("/stream"))
    await eventually(lambda: open_streams() == 1, what="the stream opened")
    app.state.release.set()
    assert (await listening).status_code == 200
    assert open_streams() == 0
    assert counted(registry) == {("GET", "/stream", "200"): 1}
    timed = {"component": "tested", "method": "GET", "route": "/stream"}
    assert registry.get_sample_value("pyoco_http_request_duration_seconds_count", timed) is None

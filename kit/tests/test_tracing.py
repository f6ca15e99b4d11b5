"""Spans are made only if somebody records them; a trace that others began is carried on either way."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI
from opentelemetry.trace import SpanKind, StatusCode

from fleet_contracts.trace_context import TraceContext
from fleet_kit.http.app import create_app, new_router
from fleet_kit.logs.setup import LineFormatter
from fleet_kit.settings import FleetSettings
from fleet_kit.telemetry.metrics import new_registry
from fleet_kit.telemetry.tracing import Kind, current, is_recording, span
from fleet_testkit.apps import running
from fleet_testkit.spans import RecordedSpans, ids_of, parent_id_of, recorded_spans

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
REMOTE = TraceContext(TRACE, PARENT, tracestate="vendor=opaque")


@pytest.fixture
def spans() -> Iterator[RecordedSpans]:
    with recorded_spans() as recorded:
        yield recorded


def test_without_a_recorder_nothing_is_made_and_no_context_is_there() -> None:
    assert not is_recording()
    with span("work", {"pyoco.run.id": "r1"}, begins_trace=True) as made:
        made.set("pyoco.attempt", 1)
        made.fail("ValueError", "no")
        assert current() is None
    assert made is span("other")


def test_without_a_recorder_a_remote_context_is_carried_as_it_is() -> None:
    with span("work", parent=REMOTE):
        assert current() == REMOTE
        with span("inner"):
            assert current() == REMOTE
    assert current() is None


def test_a_span_outside_of_any_trace_is_recorded_only_if_it_may_begin_one(spans: RecordedSpans) -> None:
    with span("background"):
        assert current() is None
    with span("request", begins_trace=True), span("inner"):
        pass
    assert spans.names == ["inner", "request"]
    assert parent_id_of(spans.named("inner")) == ids_of(spans.named("request"))[1]
    assert parent_id_of(spans.named("request")) is None


def test_a_span_continues_a_remote_trace_with_what_vendors_say(spans: RecordedSpans) -> None:
    with span("work", {"pyoco.run.id": "r1", "pyoco.tenant.id": None}, kind=Kind.CONSUMER, parent=REMOTE) as made:
        assert made.context is not None
        assert made.context.headers == {
            "traceparent": f"00-{TRACE}-{made.context.span_id}-01",
            "tracestate": "vendor=opaque",
        }
    work = spans.named("work")
    assert (ids_of(work)[0], parent_id_of(work)) == (TRACE, PARENT)
    assert work.kind is SpanKind.CONSUMER
    assert work.attributes == {"pyoco.run.id": "r1"}


def test_of_a_trace_that_is_not_sampled_nothing_is_recorded_but_it_goes_on(spans: RecordedSpans) -> None:
    with span("work", parent=TraceContext(TRACE, PARENT, is_sampled=False)):
        context = current()
        assert context is not None
        assert (context.trace_id, context.is_sampled) == (TRACE, False)
    assert spans.all == []


def test_a_link_says_how_another_span_is_related(spans: RecordedSpans) -> None:
    with span("work", parent=REMOTE) as work:
        work.link(REMOTE, {"pyoco.queue.wait_ms": 12.5})
    [link] = spans.named("work").links
    assert f"{link.context.span_id:016x}" == PARENT
    assert link.attributes == {"pyoco.queue.wait_ms": 12.5}


def test_a_failure_is_recorded_by_its_type_and_a_bounded_message(spans: RecordedSpans) -> None:
    def fail() -> None:
        with span("work", begins_trace=True):
            raise ValueError("x" * 10_000)

    with pytest.raises(ValueError, match="xxx"):
        fail()
    work = spans.named("work")
    assert work.attributes == {"error.type": "ValueError"}
    assert work.status.status_code is StatusCode.ERROR
    assert work.status.description == "x" * 500
    assert not work.events
    assert current() is None


def test_a_piece_of_work_may_end_elsewhere_than_it_began(spans: RecordedSpans) -> None:
    sent = span("send", parent=REMOTE, begun_at=100.0)
    with sent.active():
        assert current() == sent.context
    assert current() is None
    assert spans.all == []
    sent.end(at=101.5)
    send = spans.named("send")
    assert (send.start_time, send.end_time) == (100_000_000_000, 101_500_000_000)


async def test_tasks_have_the_context_of_where_they_were_begun(spans: RecordedSpans) -> None:
    async def look() -> TraceContext | None:
        await asyncio.sleep(0)
        return current()

    with span("a", begins_trace=True) as a:
        in_a = asyncio.create_task(look())
    with span("b", begins_trace=True) as b:
        in_b = asyncio.create_task(look())
    assert (await in_a, await in_b) == (a.context, b.context)


def test_a_line_logged_inside_carries_the_ids_and_one_outside_does_not() -> None:
    formatter = LineFormatter(service="s", component="c", settings=FleetSettings())
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "hello", None, None)
    assert "trace_id" not in json.loads(formatter.format(record))
    with span("work", parent=REMOTE):
        line = json.loads(formatter.format(record))
    assert (line["trace_id"], line["span_id"]) == (TRACE, PARENT)


router = new_router()


@router.get("/things/{name}")
async def thing(name: str, color: str = "") -> dict[str, str | None]:
    context = current()
    return {"trace": context.traceparent if context else None}


@router.get("/crash")
async def crash() -> None:
    raise RuntimeError("a secret detail")


async def ready() -> dict[str, str]:
    return {}


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    yield


def app_under_test() -> FastAPI:
    return create_app(
        component="test", routers=[router], lifespan=lifespan, readiness=ready, registry=new_registry("test")
    )


async def test_a_request_is_a_span_named_by_its_route(spans: RecordedSpans) -> None:
    async with running(app_under_test()) as client:
        await client.get("/things/a?color=secret", headers={"X-Request-Id": "q1"})
    [request] = spans.all
    assert request.name == "GET /things/{name}"
    assert request.kind is SpanKind.SERVER
    assert request.attributes == {
        "http.request.method": "GET",
        "http.route": "/things/{name}",
        "http.response.status_code": 200,
        "url.path": "/things/a",
        "pyoco.request.id": "q1",
    }
    assert request.status.status_code is StatusCode.UNSET


async def test_a_key_in_a_path_stays_secret(spans: RecordedSpans) -> None:
    async with running(app_under_test()) as client:
        await client.get("/things/pyoco_k1_" + "x" * 43)
    [request] = spans.all
    assert request.attributes is not None
    assert request.attributes["url.path"] == "/things/pyoco_k1_(withheld)"
    assert "xxx" not in str(request.to_json())


async def test_a_crash_is_an_error_of_its_request_and_its_message_stays_inside(spans: RecordedSpans) -> None:
    async with running(app_under_test()) as client:
        assert (await client.get("/crash")).status_code == 500
        assert (await client.get("/nowhere")).status_code == 404
    crashed, unknown = spans.all
    assert (crashed.name, crashed.status.status_code) == ("GET /crash", StatusCode.ERROR)
    assert crashed.attributes is not None
    assert crashed.attributes["error.type"] == "500"
    assert "secret" not in str(crashed.to_json())
    assert (unknown.name, unknown.status.status_code) == ("GET", StatusCode.UNSET)


async def test_probes_and_metrics_are_not_traced(spans: RecordedSpans) -> None:
    async with running(app_under_test()) as client:
        for path in ("/health", "/ready", "/metrics"):
            await client.get(path)
    assert spans.all == []


async def test_a_clients_trace_continues(spans: RecordedSpans) -> None:
    async with running(app_under_test()) as client:
        answer = await client.get("/things/a", headers=REMOTE.headers)
    [request] = spans.all
    assert (ids_of(request)[0], parent_id_of(request)) == (TRACE, PARENT)
    assert answer.json() == {"trace": f"00-{TRACE}-{ids_of(request)[1]}-01"}


async def test_a_clients_trace_is_propagated_without_a_recorder() -> None:
    async with running(app_under_test()) as client:
        assert (await client.get("/things/a", headers=REMOTE.headers)).json() == {"trace": REMOTE.traceparent}
        assert (await client.get("/things/a", headers={"traceparent": "nonsense"})).json() == {"trace": None}
        twice = [("traceparent", REMOTE.traceparent), ("traceparent", REMOTE.traceparent)]
        assert (await client.get("/things/a", headers=twice)).json() == {"trace": None}


async def test_the_trace_of_a_client_is_ignored_without_propagators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PROPAGATORS", "none")
    async with running(app_under_test()) as client:
        assert (await client.get("/things/a", headers=REMOTE.headers)).json() == {"trace": None}

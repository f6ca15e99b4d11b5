"""Every answer of a service: its request id, its error envelope, its log line, its readiness."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Query

from fleet_contracts.problems import Problem
from fleet_kit.errors import FleetError, NatsUnavailable, code_of_status
from fleet_kit.http.app import answers_invalid_requests_with, create_app, listen_when_ready, new_router
from fleet_kit.http.identity import RunsReader
from fleet_kit.telemetry.metrics import new_registry
from fleet_testkit.apps import running

router = new_router()


class TeapotEmpty(FleetError):
    """The teapot is empty."""

    status = 409


class KettleUnusable(FleetError):
    """The kettle cannot be used."""

    problem = Problem.INVALID_LIST_QUERY


class StoveCold(FleetError):
    """The stove is cold."""

    status = 422
    wrong_fields = ("gas",)


class CupNotFound(FleetError):
    """There is no such cup."""

    status = 404


class PotBroken(FleetError):
    """The pot is broken."""


@router.get("/limited")
async def limited(limit: Annotated[int, Query(le=10)]) -> int:
    return limit


@router.get("/workers")
@answers_invalid_requests_with(Problem.INVALID_WORKERS_REQUEST)
async def workers(limit: Annotated[int, Query(le=10)]) -> int:
    return limit


@router.get("/outage")
async def outage() -> None:
    raise NatsUnavailable(reason="connection lost")


@router.get("/teapot")
async def teapot() -> None:
    raise TeapotEmpty(cups=0)


@router.get("/kettle")
async def kettle() -> None:
    faults = [{"field": field, "reason": "hunter2"} for field in ("water", "tea.hunter2", "tea")]
    raise KettleUnusable("hunter2 is no water", fields=faults)


@router.get("/stove")
async def stove() -> None:
    raise StoveCold("hunter2 does not burn")


@router.get("/unreadable")
async def unreadable() -> None:
    raise HTTPException(400, "hunter2 cannot be read")


@router.get("/cups/{cup_id}")
async def cup(cup_id: str) -> None:
    raise CupNotFound()


@router.get("/broken")
async def broken() -> None:
    raise PotBroken()


@router.get("/crash")
async def crash() -> None:
    raise RuntimeError("a secret detail")


@router.get("/whoami")
async def whoami(caller: RunsReader) -> dict[str, object]:
    return {
        "tenant": caller.tenant_id,
        "key": caller.api_key_id,
        "scopes": sorted(caller.scopes),
        "anonymous": caller.is_anonymous,
    }


@pytest.fixture
def missing() -> dict[str, str]:
    """What the service waits for; tests fill it."""
    return {}


@pytest.fixture
async def client(missing: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield

    async def readiness() -> dict[str, str]:
        return missing

    app = create_app(
        component="test", routers=[router], lifespan=lifespan, readiness=readiness, registry=new_registry("test")
    )
    async with running(app) as client:
        yield client


@pytest.mark.parametrize("request_id", ["abc-123", "a" * 128, "run:1.2_3"])
async def test_a_request_id_is_kept_and_returned(client: httpx.AsyncClient, request_id: str) -> None:
    answer = await client.get("/health", headers={"X-Request-Id": request_id})
    assert answer.headers["x-request-id"] == request_id


@pytest.mark.parametrize("request_id", ["", "a b", "a" * 129, '"><script>'])
async def test_a_missing_or_strange_request_id_is_replaced(client: httpx.AsyncClient, request_id: str) -> None:
    first = await client.get("/health", headers={"X-Request-Id": request_id})
    second = await client.get("/health")
    ids = {first.headers["x-request-id"], second.headers["x-request-id"]}
    assert len(ids) == 2
    assert all(len(made) == 32 and made.isalnum() for made in ids)


async def test_a_failure_with_a_name_is_answered_in_the_envelope(client: httpx.AsyncClient) -> None:
    answer = await client.get("/outage", headers={"X-Request-Id": "q1"})
    assert answer.status_code == 503
    sentence = "NATS is unavailable; try again when it is back."
    assert answer.json() == {
        "ok": False,
        "error": {
            "code": "DEPENDENCY_ERROR",
            "message": sentence,
            "meta": {
                "request_id": "q1",
                "err_id": "ERR-PYOCO-0003",
                "msg_id": "MSG-PYOCO-0003",
                "retryable": True,
                "reason": "connection lost",
            },
        },
        "detail": sentence,
    }


async def test_a_failure_without_a_problem_id_has_its_own_status(client: httpx.AsyncClient) -> None:
    answer = await client.get("/teapot")
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert (error["code"], error["message"], error["meta"]["cups"]) == ("CONFLICT", "The teapot is empty.", 0)


async def test_the_answer_to_a_bad_request_names_the_field_and_the_reason(client: httpx.AsyncClient) -> None:
    answer = await client.get("/limited", params={"limit": "11"})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["meta"]["err_id"] == "ERR-PYOCO-0002"
    reason = "Input should be less than or equal to 10"
    assert error["meta"]["fields"] == [{"field": "query.limit", "reason": reason}]
    assert answer.json()["detail"] == f"query.limit: {reason}"


async def test_a_route_may_have_a_problem_of_its_own_for_bad_requests(client: httpx.AsyncClient) -> None:
    answer = await client.get("/workers", params={"limit": "11"})
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0019"


async def test_a_crash_is_answered_without_details_and_logged_with_all_of_them(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await client.get("/crash")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "INTERNAL_ERROR"
    assert answer.json()["error"]["meta"] == {"request_id": answer.headers["x-request-id"], "retryable": False}
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    logged = [record for record in caplog.records if record.exc_info]
    assert [str(record.exc_info[1]) for record in logged if record.exc_info] == ["a secret detail"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/limited?limit=hunter2", {"fields": ["query.limit"], "detail": "invalid request"}),
        ("/kettle", {"fields": ["water", "tea"], "detail": "invalid list query"}),
        ("/stove", {"fields": ["gas"], "detail": "The stove is cold."}),
        ("/unreadable", {"fields": [], "detail": "invalid request"}),
        ("/cups/c1", {"resource": "/cups/c1"}),
        ("/nowhere", {"resource": "/nowhere"}),
        ("/crash", {"exception_type": "RuntimeError", "retryable": False}),
        ("/broken", {"exception_type": "PotBroken", "retryable": False}),
        ("/outage", {"provider": "nats", "dependency_status": "connection lost", "retryable": True}),
        ("/teapot", {}),
    ],
)
async def test_the_line_of_a_failed_request_has_what_the_taxonomy_asks_for(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, path: str, expected: dict[str, object]
) -> None:
    with caplog.at_level(logging.INFO, "fleet_kit.http.app"):
        answer = await client.get(path)
    asked = {"method": "GET", "path": path.partition("?")[0], "status_code": answer.status_code}
    meta = caplog.records[-1].__dict__["meta"]
    assert meta == {**asked, "error_code": code_of_status(answer.status_code), **expected}
    assert "hunter2" not in str(meta)


async def test_what_is_away_is_logged_with_the_exception_but_without_its_traceback(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await client.get("/outage")).status_code == 503
    away = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert away.exc_info is None
    line = away.__dict__
    assert (line["exc_type"], line["exc_message"]) == ("NatsUnavailable", away.getMessage())
    assert line["exc_origin"].startswith(f"{__file__}:")
    assert line["exc_origin"].endswith(" in outage")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/nowhere", 404, "NOT_FOUND"), ("DELETE", "/health", 405, "METHOD_NOT_ALLOWED")],
)
async def test_what_the_framework_refuses_has_the_same_envelope(
    client: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["meta"]["request_id"] == answer.headers["x-request-id"]


async def test_a_refused_method_says_what_is_allowed(client: httpx.AsyncClient) -> None:
    assert (await client.delete("/health")).headers["allow"] == "GET"


@pytest.mark.parametrize(
    ("path", "level"),
    [
        ("/limited?limit=1", logging.DEBUG),
        ("/limited?limit=11", logging.INFO),
        ("/crash", logging.ERROR),
        ("/health", logging.DEBUG),
    ],
)
async def test_a_request_line_has_method_path_and_status_and_a_level_to_match(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, path: str, level: int
) -> None:
    with caplog.at_level(logging.DEBUG, "fleet_kit.http.app"):
        answer = await client.get(path)
    line = caplog.records[-1]
    assert line.levelno == level
    assert line.__dict__["event"] == "request"
    assert line.__dict__["status"] == ("completed" if answer.status_code < 400 else "failed")
    meta = line.__dict__["meta"]
    assert (meta["method"], meta["path"]) == ("GET", path.partition("?")[0])
    assert meta["status_code"] == answer.status_code
    assert meta.get("error_code") == (None if answer.status_code < 400 else code_of_status(answer.status_code))


async def test_probes_are_quiet_also_while_something_is_away(
    client: httpx.AsyncClient, missing: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    missing["nats"] = "connection refused"
    with caplog.at_level(logging.INFO, "fleet_kit.http.app"):
        assert (await client.get("/ready")).status_code == 503
    assert caplog.records == []


async def test_what_is_away_makes_a_service_unready_but_not_unhealthy(
    client: httpx.AsyncClient, missing: dict[str, str]
) -> None:
    assert (await client.get("/ready")).json() == {"status": "ready", "waiting_for": {}}
    missing["nats"] = "connection refused"
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()["waiting_for"]) == (503, missing)
    health = await client.get("/health")
    assert (health.status_code, health.json()) == (200, {"status": "degraded", "waiting_for": missing})


async def test_metrics_are_given_in_the_text_format(client: httpx.AsyncClient) -> None:
    answer = await client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'pyoco_build_info{component="test"' in answer.text


async def test_a_caller_is_who_the_gateway_says(client: httpx.AsyncClient) -> None:
    headers = {"X-Pyoco-Tenant-Id": "acme", "X-Pyoco-Api-Key-Id": "k1", "X-Pyoco-Scopes": "runs:read runs:write"}
    assert (await client.get("/whoami", headers=headers)).json() == {
        "tenant": "acme",
        "key": "k1",
        "scopes": ["runs:read", "runs:write"],
        "anonymous": False,
    }
    anonymous = {"X-Pyoco-Tenant-Id": "anonymous", "X-Pyoco-Api-Key-Id": "", "X-Pyoco-Scopes": "admin"}
    assert (await client.get("/whoami", headers=anonymous)).json() == {
        "tenant": "anonymous",
        "key": None,
        "scopes": ["admin"],
        "anonymous": True,
    }


@pytest.mark.parametrize("scopes", [None, "", "runs:write", "runs:reader", "runs:read,runs:write"])
async def test_a_caller_without_the_scope_is_refused_with_its_name(
    client: httpx.AsyncClient, scopes: str | None
) -> None:
    headers = {"X-Pyoco-Tenant-Id": "acme"} | ({} if scopes is None else {"X-Pyoco-Scopes": scopes})
    answer = await client.get("/whoami", headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0015"
    assert answer.json()["error"]["meta"]["missing_scope"] == "runs:read"


@pytest.mark.parametrize("headers", [{}, {"X-Pyoco-Tenant-Id": ""}, {"X-Pyoco-Api-Key-Id": "k1"}])
async def test_a_caller_without_a_tenant_is_refused(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    answer = await client.get("/whoami", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0014"


async def test_a_starting_service_may_be_held_until_it_is_ready_or_its_time_is_up() -> None:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield

    looks = 0

    async def readiness() -> dict[str, str]:
        nonlocal looks
        looks += 1
        return {"nats": "not connected yet"} if looks < 3 else {}

    app = create_app(
        component="test", routers=[], lifespan=lifespan, readiness=readiness, registry=new_registry("test")
    )
    listen_when_ready(app, within_seconds=30)
    async with app.router.lifespan_context(app):
        assert looks == 3

    async def never() -> dict[str, str]:
        return {"nats": "not connected yet"}

    app = create_app(component="test", routers=[], lifespan=lifespan, readiness=never, registry=new_registry("test"))
    listen_when_ready(app, within_seconds=0.1)
    async with app.router.lifespan_context(app):
        assert await never()

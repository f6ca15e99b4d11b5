"""Every route × every kind of key, through the real gateway with authentication on."""

import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from fleet_contracts.scopes import ALL_SCOPES, Scope
from fleet_testkit.api_keys import KEY_HEADER, KeyRing
from fleet_testkit.fleet import Fleet
from fleet_testkit.routes import service_routes
from fleet_testkit.runs import submit
from fleet_testkit.waiting import wait_until

Route = tuple[str, str]

# The scope that each route asks for. A route that is added and has no row here makes the first test fail.
TABLE: dict[Route, Scope] = {
    ("GET", "/runs"): Scope.RUNS_READ,
    ("POST", "/runs"): Scope.RUNS_WRITE,
    ("POST", "/runs/batch"): Scope.RUNS_WRITE,
    ("POST", "/runs/yaml"): Scope.RUNS_WRITE,
    ("GET", "/runs/watch"): Scope.RUNS_READ,
    ("POST", "/runs/watch"): Scope.RUNS_READ,
    ("POST", "/runs/results"): Scope.RUNS_READ,
    ("GET", "/runs/{run_id}"): Scope.RUNS_READ,
    ("GET", "/runs/{run_id}/attempts"): Scope.RUNS_READ,
    ("GET", "/runs/{run_id}/events"): Scope.RUNS_READ,
    ("GET", "/runs/{run_id}/logs"): Scope.RUNS_READ,
    ("GET", "/runs/{run_id}/result"): Scope.RUNS_READ,
    ("GET", "/runs/{run_id}/tasks"): Scope.RUNS_READ,
    ("GET", "/runs/{run_id}/watch"): Scope.RUNS_READ,
    ("POST", "/runs/{run_id}/cancel"): Scope.RUNS_WRITE,
    ("POST", "/runs/{run_id}/rerun"): Scope.RUNS_WRITE,
    ("GET", "/dlq"): Scope.RUNS_READ,
    ("DELETE", "/dlq"): Scope.RUNS_WRITE,
    ("GET", "/dlq/groups"): Scope.RUNS_READ,
    ("POST", "/dlq/requeue"): Scope.RUNS_WRITE,
    ("GET", "/dlq/{letter_id}"): Scope.RUNS_READ,
    ("DELETE", "/dlq/{letter_id}"): Scope.RUNS_WRITE,
    ("POST", "/dlq/{letter_id}/requeue"): Scope.RUNS_WRITE,
    ("GET", "/flows"): Scope.WORKERS_READ,
    ("GET", "/flows/events"): Scope.WORKERS_READ,
    ("GET", "/flows/{flow_name}"): Scope.WORKERS_READ,
    ("GET", "/fleet/metrics"): Scope.METRICS_READ,
    ("GET", "/workers"): Scope.WORKERS_READ,
    ("GET", "/workers/events"): Scope.WORKERS_READ,
    ("GET", "/workers/{worker_id}"): Scope.WORKERS_READ,
    ("PATCH", "/workers/{worker_id}"): Scope.WORKERS_WRITE,
    ("POST", "/workers/{worker_id}/drain"): Scope.WORKERS_WRITE,
    ("POST", "/workers/{worker_id}/resume"): Scope.WORKERS_WRITE,
    ("GET", "/wheels"): Scope.WHEELS_READ,
    ("POST", "/wheels"): Scope.WHEELS_WRITE,
    ("GET", "/wheels/history"): Scope.WHEELS_READ,
    ("GET", "/wheels/{wheel_name}"): Scope.WHEELS_READ,
    ("HEAD", "/wheels/{wheel_name}"): Scope.WHEELS_READ,
    ("DELETE", "/wheels/{wheel_name}"): Scope.WHEELS_WRITE,
    ("GET", "/auth/keys"): Scope.ADMIN,
    ("POST", "/auth/keys"): Scope.ADMIN,
    ("GET", "/auth/keys/{key_id}"): Scope.ADMIN,
    ("POST", "/auth/keys/{key_id}/revoke"): Scope.ADMIN,
}
# Routes that the services have for each other and for operators: to the gateway's callers they do not exist.
INSIDE = {("GET", "/ready"), ("GET", "/verify")}
OPEN = {("GET", "/health")}
# The gateway has a file of that name, about all services.
HIDDEN = {("GET", "/openapi.json")}
# Paths of the gateway by those of the service behind it; the service's own path of that name is inside.
OUTSIDE = {"/fleet/metrics": "/metrics"}

BODIES: dict[Route, dict[str, Any]] = {
    ("POST", "/runs"): {"json": {"flow_name": "hello", "tag": "nobody"}},
    ("POST", "/runs/batch"): {"json": {"runs": [{"flow_name": "hello", "tag": "nobody"}]}},
    ("GET", "/runs/watch"): {"params": {"ids": str(uuid.uuid4())}},
    ("POST", "/runs/watch"): {"json": {"run_ids": [str(uuid.uuid4())]}},
    ("POST", "/runs/results"): {"json": {"run_ids": [str(uuid.uuid4())]}},
    ("POST", "/auth/keys"): {"json": {"tenant_id": "acme"}},
    ("POST", "/dlq/requeue"): {"json": {"all": True}},
    ("DELETE", "/dlq"): {"params": {"all": True}},
}


@dataclass(frozen=True)
class Keys:
    """One key of each kind, as headers; the last two by the scope they are about."""

    bad: dict[str, str]
    revoked: dict[str, str]
    expired: dict[str, str]
    only: dict[Scope, dict[str, str]]
    all_but: dict[Scope, dict[str, str]]
    admin: dict[str, str]


@pytest.fixture(scope="module")
def ring(guarded: Fleet) -> KeyRing:
    return KeyRing(guarded)


@pytest.fixture(scope="module")
def keys(guarded: Fleet, ring: KeyRing) -> Keys:
    revoked = ring.issue_in_full("acme")
    ring.revoke(revoked["key_id"])
    expired = ring.issue("acme", expires_in_sec=1)
    made = Keys(
        bad={KEY_HEADER: f"pyoco_0123456789abcdef_{'x' * 43}"},
        revoked={KEY_HEADER: revoked["api_key"]},
        expired=expired,
        only={scope: ring.issue("acme", [scope]) for scope in Scope},
        all_but={scope: ring.issue("acme", ALL_SCOPES - {scope, Scope.ADMIN}) for scope in Scope},
        admin=ring.issue("acme", [Scope.ADMIN]),
    )
    wait_until(lambda: guarded.client.get("/runs", headers=expired).status_code == 403, what="the key expiring")
    return made


@pytest.fixture(scope="module")
def foreign_run(guarded: Fleet, ring: KeyRing) -> Iterator[str]:
    """A run of another tenant than the keys'."""
    with httpx.Client(base_url=guarded.url, headers=ring.issue("globex"), timeout=30) as client:
        yield submit(client, "hello", tag="nobody")


def ask(stack: Fleet, route: Route, headers: dict[str, str], **in_path: str) -> tuple[int, dict[str, Any]]:
    """The status, and what the answer says if it is a refusal; of a stream only that it began."""
    method, path = route[0], OUTSIDE.get(route[1], route[1])
    places = {
        "run_id": str(uuid.uuid4()),
        "letter_id": "999999999",
        **dict.fromkeys(("key_id", "worker_id", "wheel_name", "flow_name"), "nobody"),
        **in_path,
    }
    with stack.client.stream(method, path.format(**places), headers=headers, **BODIES.get(route, {})) as answer:
        if answer.status_code < 400:
            return answer.status_code, {}
        if method == "HEAD":
            # It is answered as a GET is, without the body: ask for what it would have been.
            return answer.status_code, ask(stack, ("GET", path), headers, **in_path)[1]
        answer.read()
        body: dict[str, Any] = answer.json()
        return answer.status_code, body["error"]["meta"]


def test_every_route_of_every_service_has_a_row() -> None:
    routes = {(route.method, route.path) for route in service_routes()}
    assert {*TABLE, *INSIDE, *OPEN, *HIDDEN, *(("GET", path) for path in OUTSIDE.values())} == routes


def test_the_applications_ask_for_what_the_table_says() -> None:
    asked = {(route.method, route.path): route.scope for route in service_routes() if route.scope is not None}
    assert asked == TABLE


@pytest.mark.parametrize("route", TABLE)
def test_without_a_key_nobody_gets_in(guarded: Fleet, route: Route) -> None:
    for headers in ({}, {KEY_HEADER: ""}, {"Authorization": "Bearer x", "Cookie": "X-API-Key=x"}):
        status, meta = ask(guarded, route, headers)
        assert (status, meta["err_id"]) == (401, "ERR-PYOCO-0014")


@pytest.mark.parametrize("kind", ["bad", "revoked", "expired"])
@pytest.mark.parametrize("route", TABLE)
def test_with_a_key_that_is_none_nobody_gets_in(guarded: Fleet, keys: Keys, route: Route, kind: str) -> None:
    status, meta = ask(guarded, route, getattr(keys, kind))
    assert (status, meta["err_id"]) == (403, "ERR-PYOCO-0015")
    # The answer does not say which of them it is.
    assert "missing_scope" not in meta
    assert set(meta) == {"request_id", "err_id", "msg_id", "retryable"}


@pytest.mark.parametrize(("route", "scope"), TABLE.items())
def test_a_key_without_the_scope_is_refused_with_the_missing_one(
    guarded: Fleet, keys: Keys, route: Route, scope: Scope
) -> None:
    status, meta = ask(guarded, route, keys.all_but[scope])
    assert (status, meta["err_id"], meta.get("missing_scope")) == (403, "ERR-PYOCO-0015", scope.value)


@pytest.mark.parametrize(("route", "scope"), TABLE.items())
def test_a_key_with_just_the_scope_gets_in(guarded: Fleet, keys: Keys, route: Route, scope: Scope) -> None:
    status, meta = ask(guarded, route, keys.only[scope])
    assert status < 500, meta
    assert status not in (401, 403), meta


@pytest.mark.parametrize("route", TABLE)
def test_an_admin_gets_in_everywhere(guarded: Fleet, keys: Keys, route: Route) -> None:
    status, meta = ask(guarded, route, keys.admin)
    assert status < 500, meta
    assert status not in (401, 403), meta


# The routes whose bad queries are another problem than ERR-PYOCO-0002.
LISTS = {("GET", "/runs"), ("GET", "/dlq"), ("DELETE", "/dlq"), ("GET", "/dlq/groups")}


@pytest.mark.parametrize("route", [*TABLE, *OPEN])
def test_a_parameter_that_the_route_does_not_know_is_refused(guarded: Fleet, keys: Keys, route: Route) -> None:
    method, path = route[0], OUTSIDE.get(route[1], route[1])
    places = {
        "run_id": str(uuid.uuid4()),
        "letter_id": "1",
        **dict.fromkeys(("key_id", "worker_id", "wheel_name", "flow_name"), "x"),
    }
    answer = guarded.client.request(method, path.format(**places), params={"limti": 7}, headers=keys.admin)
    assert answer.status_code == 422
    if method != "HEAD":
        err_id = "ERR-PYOCO-0017" if route in LISTS else "ERR-PYOCO-0002"
        expected = "ERR-PYOCO-0019" if path.startswith("/workers") else err_id
        assert answer.json()["error"]["meta"]["err_id"] == expected
        assert 'unknown parameter "limti"' in answer.json()["detail"]
        assert '(did you mean "limit"?)' in answer.json()["detail"] or route not in {*LISTS, ("GET", "/workers")}


@pytest.mark.parametrize("route", [route for route in TABLE if "{run_id}" in route[1]])
def test_another_tenants_run_does_not_exist_not_even_for_an_admin(
    guarded: Fleet, keys: Keys, foreign_run: str, route: Route
) -> None:
    for key in (keys.only[TABLE[route]], keys.admin):
        status, meta = ask(guarded, route, key, run_id=foreign_run)
        assert (status, meta["err_id"]) == (404, "ERR-PYOCO-0005")


@pytest.mark.parametrize("route", sorted(INSIDE))
def test_what_is_inside_cannot_be_asked_from_outside(guarded: Fleet, keys: Keys, route: Route) -> None:
    for headers in ({}, keys.bad, keys.admin):
        assert ask(guarded, route, headers)[0] == 404


# However it is written: the metrics of each service are not to be had from outside.
WAYS_TO_METRICS = [
    *("/fleet/metrics", "/runs-api/metrics", "/auth/metrics", "/workers/metrics", "/wheels/metrics", "/dlq/metrics"),
    *("//metrics", "/metrics?x=/runs", "/%6detrics", "/runs/../metrics", "/runs/%2e%2e/metrics"),
    *("/runs/..%2fmetrics", "/metrics/../runs/../metrics", "/workers/../metrics", "/auth/..%2fmetrics"),
]


@pytest.mark.parametrize("target", WAYS_TO_METRICS)
def test_no_way_of_writing_the_address_leads_to_metrics_without_a_key(
    guarded: Fleet, keys: Keys, target: str
) -> None:
    for headers in ({}, keys.bad, keys.all_but[Scope.METRICS_READ]):
        lines = [f"{name}: {value}" for name, value in headers.items()]
        with socket.create_connection(("127.0.0.1", guarded.port), timeout=30) as connection:
            request = [f"GET {target} HTTP/1.1", "Host: localhost", "Connection: close", *lines, "", ""]
            connection.sendall("\r\n".join(request).encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.split(b" ", 2)[1] in (b"401", b"403", b"404", b"405", b"422"), answer[:200]
        assert b"pyoco_" not in answer


def test_the_gateways_metrics_contain_nothing_of_anybodys_flows(guarded: Fleet, keys: Keys, foreign_run: str) -> None:
    text = guarded.client.get("/metrics", headers=keys.only[Scope.METRICS_READ]).text
    assert "pyoco_runs_total{" in text
    assert "hello" not in text
    assert "pyoco_http_requests" not in text


@pytest.mark.parametrize("headers", [{}, {KEY_HEADER: "whatever"}])
@pytest.mark.parametrize("path", ["/", "/static/app.js", "/static/config.js", "/health"])
def test_only_these_need_no_key(guarded: Fleet, path: str, headers: dict[str, str]) -> None:
    assert guarded.client.get(path, headers=headers).status_code == 200

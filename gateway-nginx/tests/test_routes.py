"""Which address goes to which service, and what the service gets of the request."""

import pytest

RUN = "/runs/0b7e5f7e-6a0e-4b43-9f39-7d8f3f0c9d11"


@pytest.mark.parametrize(
    ("path", "service"),
    [
        ("/health", "runs"),
        ("/runs", "runs"),
        ("/runs/", "runs"),
        ("/runs?limit=50&status=FAILED", "runs"),
        ("/runs/batch", "runs"),
        ("/runs/yaml", "runs"),
        (RUN, "runs"),
        (f"{RUN}/tasks", "runs"),
        (f"{RUN}/cancel", "runs"),
        (f"{RUN}/watch?include=full", "runs"),
        (f"{RUN}/logs", "runs"),
        (f"{RUN}/a%2Fb", "runs"),
        ("/jobs", "runs"),
        ("/jobs/1", "runs"),
        ("/artifacts", "runs"),
        ("/artifacts/a/b.txt", "runs"),
        ("/dlq", "runs"),
        ("/dlq/1/replay", "runs"),
        ("/flows", "runs"),
        ("/flows/events", "runs"),
        ("/flows/a%2Fb", "runs"),
        ("/workers", "workers"),
        ("/workers?scope=all", "workers"),
        ("/workers/w1", "workers"),
        ("/workers/events", "workers"),
        ("/wheels", "wheels"),
        ("/wheels/history", "wheels"),
        ("/wheels/demo-1.0-py3-none-any.whl", "wheels"),
        ("/auth/keys", "auth"),
        ("/auth/keys/k1", "auth"),
    ],
)
def test_an_address_reaches_its_service_unchanged(shared_gateway, path, service):
    with shared_gateway.client() as client:
        answer = client.get(path)
    assert answer.status_code == 200
    assert answer.json()["service"] == service
    assert answer.json()["path"] == path


@pytest.mark.parametrize("path", ["/metrics", "/%6detrics", "/runs/../metrics", "/workers/..%2Fmetrics"])
def test_the_metrics_of_a_service_are_not_those_of_the_gateway(shared_gateway, path):
    with shared_gateway.client() as client:
        answer = client.get(path)
    assert (answer.json()["service"], answer.json()["path"]) == ("runs", "/fleet/metrics")


@pytest.mark.parametrize(
    "path",
    [
        "/runsfoo",
        "/run",
        "/Runs",
        "/runs%0A",
        "/jobsx/1",
        "/flowsx",
        "/workersfoo",
        "/wheels2",
        "/metrics/",
        "/fleet/metrics",
        "/metricsx",
        "/health/",
        "/healthz",
        "/auth",
        "/authx/keys",
        "/verify",
        "/ready",
        "/openapi.json/",
        "/docs/",
        "/docs.html",
        "/redoc",
        "/_fleet/verify",
        "/_fleet/error",
        "/index.html",
        "/favicon.ico",
        "/static",
        "/static/",
        "/static/nothing.js",
        "/static/../templates/pyoco.conf.template",
        "/static/..%2frender.py",
        "/runs/../ready",
        "/runs/..%2Fready",
        "/runs/%2e%2e/docs.html",
        "/static/vendor/",
        "/auth/../verify",
        "/auth/%2e%2e/verify",
        "/auth//../verify",
        "/.env",
    ],
)
@pytest.mark.parametrize("key", ["good", None])
def test_any_other_address_does_not_exist_and_reaches_nobody(shared_gateway, path, key):
    seen_before = {name: len(service.seen) for name, service in shared_gateway.services.items()}
    header = f"X-API-Key: {key}\r\n" if key else ""
    # As raw bytes: an HTTP client would tidy the dots before it sends them.
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n"
    status, headers, body = shared_gateway.raw(request.encode())
    assert status == 404
    assert headers["content-type"] == "application/json"
    assert b'"code":"NOT_FOUND"' in body
    assert {name: len(service.seen) for name, service in shared_gateway.services.items()} == seen_before


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_methods_are_left_to_the_services(shared_gateway, method):
    with shared_gateway.client() as client:
        assert client.request(method, "/runs").json()["method"] == method


def test_a_service_gets_the_address_that_the_request_came_from(shared_gateway):
    with shared_gateway.client() as client:
        headers = client.get("/runs", headers={"X-Forwarded-For": "203.0.113.9"}).json()["headers"]
    assert headers["host"] == f"127.0.0.1:{shared_gateway.config.port}"
    assert headers["x-forwarded-host"] == headers["host"]
    assert headers["x-forwarded-proto"] == "http"
    assert headers["x-forwarded-for"] == "203.0.113.9, 127.0.0.1"
    assert headers["x-real-ip"] == "127.0.0.1"


def test_connections_to_a_service_are_used_again(gateway):
    with gateway.client() as client:
        for _ in range(20):
            client.get("/runs")
    connections = {exchange.connection for exchange in gateway.services["runs"].seen}
    # One per nginx worker at most.
    assert len(connections) <= gateway.config.worker_processes


@pytest.mark.parametrize("path", ["/runs", "/health"])
def test_a_good_request_id_of_the_client_is_passed_on_and_returned_once(shared_gateway, path):
    with shared_gateway.client() as client:
        answer = client.get(path, headers={"X-Request-Id": "Order_7.a:b-c"})
    assert answer.json()["headers"]["x-request-id"] == "Order_7.a:b-c"
    assert answer.headers.get_list("x-request-id") == ["Order_7.a:b-c"]


@pytest.mark.parametrize("bad", [None, "", "a b", 'x","evil":"1', "a\\b", "x" * 129, "é"])
def test_a_missing_or_harmful_request_id_is_replaced(shared_gateway, bad):
    with shared_gateway.client() as client:
        answer = client.get("/runs", headers={} if bad is None else {"X-Request-Id": bad.encode()})
    (returned,) = answer.headers.get_list("x-request-id")
    assert len(returned) == 32
    assert int(returned, 16) >= 0
    assert answer.json()["headers"]["x-request-id"] == returned

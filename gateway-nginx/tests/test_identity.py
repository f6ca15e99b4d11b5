"""Nobody gets in without auth's word, and auth alone says who it is."""

import itertools
import time

import pytest

from fleet_contracts.problems import Problem
from fleet_gateway import render as rendering
from fleet_kit.errors import envelope
from fleet_testkit.waiting import wait_until

SPOOFED = {
    "X-Pyoco-Tenant-Id": "victim",
    "X-Pyoco-Api-Key-Id": "stolen",
    "X-Pyoco-Scopes": "admin",
    "x-pyoco-tenant-id": "victim-again",
}
PROTECTED = [
    "/runs",
    "/runs/r1",
    "/runs/r1/watch",
    "/runs/batch",
    "/jobs",
    "/artifacts/a",
    "/dlq",
    "/metrics",
    "/flows/events",
    "/workers",
    "/workers/events",
    "/wheels",
    "/auth/keys",
]


@pytest.mark.parametrize("path", PROTECTED)
def test_the_identity_comes_from_auth_whatever_the_client_says(shared_gateway, path):
    with shared_gateway.client("good-a") as client:
        headers = client.get(path, headers=SPOOFED).json()["headers"]
    assert headers["x-pyoco-tenant-id"] == "tenant-good-a"
    assert headers["x-pyoco-api-key-id"] == "id-good-a"
    assert headers["x-pyoco-scopes"] == "runs:read runs:write"


def test_an_open_route_carries_no_identity_at_all(shared_gateway):
    with shared_gateway.client("good-a") as client:
        headers = client.get("/health", headers=SPOOFED).json()["headers"]
    assert not [name for name in headers if name.startswith("x-pyoco-")]


SECRET = "what-only-the-gateway-knows"


@pytest.mark.parametrize("path", [*PROTECTED, "/health"])
def test_the_services_can_verify_that_a_request_came_through_the_gateway(start_gateway, path):
    gateway = start_gateway(secret=SECRET)
    with gateway.client("good-a") as client:
        forged = {"X-Pyoco-From-Gateway": "forged", "x-pyoco-from-gateway": "forged-again"}
        answer = client.get(path, headers=forged)
    assert answer.json()["headers"]["x-pyoco-from-gateway"] == SECRET
    verified = [seen.headers.get_all("X-Pyoco-From-Gateway") for seen in gateway.services["auth"].seen]
    assert {tuple(values) for values in verified} <= {(SECRET,)}
    assert verified or path == "/health"
    assert SECRET not in gateway.access_log.read_text() + gateway.error_log.read_text()


def test_a_gateway_without_a_secret_passes_on_none_that_a_client_made_up(shared_gateway):
    with shared_gateway.client("good-a") as client:
        headers = client.get("/runs", headers={"X-Pyoco-From-Gateway": "made-up"}).json()["headers"]
    assert "x-pyoco-from-gateway" not in headers


@pytest.mark.parametrize("path", PROTECTED)
@pytest.mark.parametrize(
    ("key", "status", "problem", "message"),
    [
        (None, 401, Problem.API_KEY_REQUIRED, "an API key is required: send it in the header X-API-Key"),
        ("bad", 403, Problem.API_KEY_INVALID, "the API key is unknown, revoked or expired; use another one"),
    ],
)
def test_without_a_valid_key_nothing_behind_is_reached(shared_gateway, path, key, status, problem, message):
    reached_before = {name: len(s.seen) for name, s in shared_gateway.services.items() if name != "auth"}
    with shared_gateway.client(key) as client:
        answer = client.post(path, json={}, headers={**SPOOFED, "X-Request-Id": "r-1"})
    assert answer.status_code == status
    assert answer.json() == envelope(status=status, message=message, request_id="r-1", problem=problem)
    assert {name: len(s.seen) for name, s in shared_gateway.services.items() if name != "auth"} == reached_before


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/static/config.js", "/health"])
def test_the_dashboard_and_the_health_check_are_open(gateway, path):
    gateway.services["auth"].stop()
    with gateway.client(None) as client:
        assert client.get(path).status_code == 200


def test_auth_is_asked_with_the_key_and_nothing_else(gateway):
    with gateway.client("good-b") as client:
        client.post("/runs?x=1", json={"a": 1}, headers={**SPOOFED, "Cookie": "c=1", "X-Request-Id": "r-2"})
    (asked,) = gateway.services["auth"].seen
    assert (asked.command, asked.path) == ("GET", "/verify")
    assert {name.lower(): value for name, value in asked.headers.items()} == {
        "host": f"127.0.0.1:{gateway.config.port}",
        "x-api-key": "good-b",
        "x-request-id": "r-2",
        "x-real-ip": "127.0.0.1",
    }


def test_another_header_may_carry_the_key(start_gateway):
    gateway = start_gateway(api_key_header="X-Fleet-Token")
    with gateway.client("good") as client:
        client.get("/runs", headers={"X-Fleet-Token": "t-1"})
    (asked,) = gateway.services["auth"].seen
    assert asked.headers["X-Fleet-Token"] == "t-1"
    assert "X-API-Key" not in asked.headers


def test_a_verification_is_remembered_for_two_seconds_at_most(gateway):
    keys = (f"good-c{number}" for number in itertools.count())
    # Once is enough: a machine that stands still makes it longer, nothing makes it shorter.
    wait_until(
        lambda: _seconds_remembered(gateway, next(keys)) < 2.5, within=20, what="a verification forgotten in time"
    )


def _seconds_remembered(gateway, key):
    auth = gateway.services["auth"]
    verified_at = []
    verify = auth.answer

    def verify_and_note(exchange):
        verified_at.append(time.monotonic())
        verify(exchange)

    auth.answer = verify_and_note
    with gateway.client(key) as client:
        for _ in range(20):
            assert client.get("/runs").json()["headers"]["x-pyoco-tenant-id"] == f"tenant-{key}"
        assert len(verified_at) < 10
        auth.answer = lambda exchange: exchange.reply(403, b"{}")
        wait_until(lambda: client.get("/runs").status_code == 403, within=30, what="the revoked key being refused")
    auth.answer = verify
    return time.monotonic() - verified_at[-1]


@pytest.mark.parametrize("status", [200, 204])
def test_two_keys_never_share_a_verification(gateway, status):
    def verify(exchange):
        exchange.reply(status, headers={"X-Pyoco-Tenant-Id": f"tenant-{exchange.headers['X-API-Key']}"})

    gateway.services["auth"].answer = verify
    for _ in range(3):
        for key in ("good-d", "good-e", "good-d2"):
            with gateway.client(key) as client:
                assert client.get("/runs").json()["headers"]["x-pyoco-tenant-id"] == f"tenant-{key}"


def test_one_verification_serves_whatever_is_asked_with_the_key(gateway):
    with gateway.client("good-f") as client:
        for _ in range(3):
            for method, path in (("GET", "/runs"), ("POST", "/runs"), ("GET", "/wheels/x"), ("DELETE", "/%77heels")):
                assert client.request(method, path).json()["headers"]["x-pyoco-tenant-id"] == "tenant-good-f"
    # Usually one; another when a second has passed meanwhile.
    assert len(gateway.services["auth"].seen) < 6


def test_the_key_goes_to_auth_and_nowhere_else(shared_gateway):
    with shared_gateway.client("good-k") as client:
        for path in PROTECTED:
            answer = client.get(path).json()
            assert "x-api-key" not in answer["headers"], path
            assert "good-k" not in {answer["headers"][name] for name in answer["headers"]}, path


@pytest.mark.parametrize(
    "keys",
    [
        [b"k" * 257],
        [b"good" * 3000],
        [b"good\x01"],
        [b"good\x7f"],
        [b"good\tgood"],
        [b"good, good"],
        [b"good", b"good"],
        [b"good", b""],
        [b"", b"good"],
        [b"good\xc3\xa9"],
        [b"\xff\xfe"],
        [b'good"'],
        [b"good\\"],
        [b"$http_x_api_key"],
    ],
)
def test_what_cannot_be_a_key_is_one_and_the_same_wrong_key(gateway, keys):
    lines = b"".join(b"X-API-Key: %b\r\n" % key for key in keys)
    status, _, _ = gateway.raw(b"GET /runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%b\r\n" % lines)
    assert status == 403
    assert [asked.headers["X-API-Key"] for asked in gateway.services["auth"].seen] == ["?"]
    assert gateway.services["runs"].seen == []


def test_no_key_is_in_any_file(gateway):
    with gateway.client("good-l-and-a-secret") as good, gateway.client("bad-and-a-secret") as bad:
        assert (good.get("/runs").status_code, bad.get("/runs").status_code) == (200, 403)
    for file in gateway.folder.rglob("*"):
        assert not file.is_file() or b"-and-a-secret" not in file.read_bytes(), file


def test_a_refusal_is_never_remembered(gateway):
    gateway.services["auth"].answer = lambda exchange: exchange.reply(
        403, b"{}", {"Cache-Control": "max-age=60", "X-Accel-Expires": "60"}
    )
    with gateway.client("good-g") as client:
        for _ in range(3):
            assert client.get("/runs").status_code == 403
    assert len(gateway.services["auth"].seen) == 3


def test_what_auth_says_about_caching_does_not_prolong_the_verification(gateway):
    def verify(exchange):
        exchange.reply(200, b"", {"X-Pyoco-Tenant-Id": "t", "Cache-Control": "max-age=60", "X-Accel-Expires": "60"})

    gateway.services["auth"].answer = verify
    with gateway.client("good-h") as client:
        client.get("/runs")
        wait_until(
            lambda: client.get("/runs").is_success and len(gateway.services["auth"].seen) >= 2,
            within=20,
            what="auth being asked again",
        )


@pytest.mark.parametrize("status", [500, 502, 504, 404, 302])
def test_an_auth_that_gives_no_verdict_lets_nobody_in(gateway, status):
    gateway.services["auth"].answer = lambda exchange: exchange.reply(status, b"oops")
    with gateway.client("good") as client:
        answer = client.get("/runs", headers={"X-Request-Id": "r-3"})
    assert answer.status_code == 503
    assert answer.json() == envelope(
        status=503, message="a service is unavailable; try again", request_id="r-3", retryable=True
    )
    assert gateway.services["runs"].seen == []


def test_an_auth_that_cannot_reach_nats_is_reported_with_the_problem_of_the_spec(gateway):
    gateway.services["auth"].answer = lambda exchange: exchange.reply(503, b"{}")
    with gateway.client("good") as client:
        answer = client.get("/runs", headers={"X-Request-Id": "r-4"})
    assert answer.status_code == 503
    assert answer.json() == envelope(
        status=503,
        message="NATS is unavailable; try again when it is back",
        request_id="r-4",
        problem=Problem.NATS_UNAVAILABLE,
    )


def test_an_auth_that_is_down_lets_nobody_in_until_it_is_back(gateway):
    gateway.services["auth"].stop()
    with gateway.client("good") as client:
        answer = client.post("/runs", json={}, headers={"X-Request-Id": "r-5"})
        assert answer.status_code == 503
        assert answer.json() == envelope(
            status=503, message="a service is unavailable; try again", request_id="r-5", retryable=True
        )
        assert gateway.services["runs"].seen == []
        gateway.services["auth"].start()
        assert client.post("/runs", json={}).status_code == 200


def test_an_nginx_without_njs_asks_auth_every_time(start_gateway, monkeypatch):
    monkeypatch.setattr(rendering, "has_njs", lambda: False)
    gateway = start_gateway()
    with gateway.client("good-n") as client, gateway.client("bad") as other:
        for _ in range(3):
            assert client.get("/runs").json()["headers"]["x-pyoco-tenant-id"] == "tenant-good-n"
            assert other.get("/runs").status_code == 403
    assert len(gateway.services["auth"].seen) == 6

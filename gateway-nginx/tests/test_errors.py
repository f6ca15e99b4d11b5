"""Errors that nginx itself answers have our envelope and are valid JSON."""

import json

import httpx
import pytest

from fleet_contracts.problems import Problem
from fleet_kit.errors import envelope
from fleet_testkit.nats_server import free_port

from .conftest import Gateway

REQUEST_ID = "err-1"


def ask(gateway, method="GET", path="/runs", **options):
    headers = {"X-Request-Id": REQUEST_ID, **options.pop("headers", {})}
    with gateway.client() as client:
        return client.request(method, path, headers=headers, **options)


def test_an_unknown_address_is_404(shared_gateway):
    answer = ask(shared_gateway, path='/no"thing\\here?<script>')
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == envelope(status=404, message="there is nothing at this address", request_id=REQUEST_ID)


def test_a_method_that_files_do_not_have_is_405(shared_gateway):
    answer = ask(shared_gateway, "POST", "/static/app.js")
    assert answer.status_code == 405
    assert answer.json() == envelope(status=405, message="this method is not allowed here", request_id=REQUEST_ID)


@pytest.mark.parametrize(
    ("path", "limit", "problem"),
    [
        ("/runs", 10_000, Problem.INVALID_REQUEST),
        ("/runs/r1/cancel", 10_000, Problem.INVALID_REQUEST),
        ("/runs/yaml", 10_000, Problem.WORKFLOW_TOO_LARGE),
        ("/runs/batch", 20_000, Problem.INVALID_REQUEST),
        ("/workers/w1", 10_000, Problem.INVALID_REQUEST),
        ("/auth/keys", 10_000, Problem.INVALID_REQUEST),
        ("/wheels", 30_000 + 1024 * 1024, Problem.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("chunked", [False, True], ids=["content-length", "chunked"])
def test_a_body_is_let_in_up_to_the_limit_of_its_route(shared_gateway, path, limit, problem, chunked):
    too_large = b"x" * (limit + 1)
    answer = ask(shared_gateway, "POST", path, content=iter([too_large]) if chunked else too_large)
    assert answer.status_code == 413
    message = f"the body is larger than the allowed {limit} bytes"
    assert answer.json() == envelope(
        status=413, message=message, request_id=REQUEST_ID, problem=problem, limit_bytes=limit
    )
    assert ask(shared_gateway, "POST", path, content=b"x" * limit).json()["body_bytes"] == limit


def raw_error(gateway, request):
    status, headers, body = gateway.raw(request)
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-request-id"] == json.loads(body)["error"]["meta"]["request_id"]
    return status, json.loads(body)


@pytest.mark.parametrize(
    ("request_bytes", "status", "message"),
    [
        (b"GARBAGE\r\n\r\n", 400, "the request is malformed"),
        (b"GET /runs HTTP/1.1\r\n\r\n", 400, "the request is malformed"),
        (b"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "the request is malformed"),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "the request is malformed"),
        (
            b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "the request is malformed",
        ),
        (
            b"POST /runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            400,
            "the request is malformed",
        ),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "the address is too long"),
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"a" * 70_000 + b"\r\n\r\n",
            431,
            "the request headers are too large",
        ),
    ],
    ids=["garbage", "no-host", "nul", "above-root", "smuggling", "no-chunk", "long-uri", "long-header"],
)
def test_a_request_that_nginx_cannot_take_is_answered_with_the_reason(shared_gateway, request_bytes, status, message):
    answered, body = raw_error(shared_gateway, request_bytes)
    assert answered == status
    assert body == envelope(status=status, message=message, request_id=body["error"]["meta"]["request_id"])


def test_odd_but_legal_headers_are_taken(shared_gateway):
    answer = ask(shared_gateway, headers={"X-Long": "a" * 12_000, "Cookie": "b" * 12_000})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("service", "path"), [("runs", "/runs"), ("runs", "/health"), ("workers", "/workers"), ("wheels", "/wheels")]
)
def test_a_service_that_is_down_is_502_and_works_again_at_once_when_it_is_back(gateway, service, path):
    gateway.services[service].stop()
    answer = ask(gateway, path=path)
    assert answer.status_code == 502
    assert answer.json() == envelope(
        status=502, message="a service is unavailable; try again", request_id=REQUEST_ID, retryable=True
    )
    gateway.services[service].start()
    assert ask(gateway, path=path).status_code == 200


@pytest.fixture(scope="module")
def stopped_runs(short_folder):
    gateway = Gateway(short_folder())
    gateway.start()
    gateway.services["runs"].stop()
    yield gateway
    gateway.stop()


def test_a_post_that_broke_off_is_never_sent_again(gateway):
    def break_off(exchange):
        exchange.close_connection = True
        exchange.connection.close()

    gateway.services["runs"].answer = break_off
    assert ask(gateway, "POST", "/runs", json={}).status_code == 502
    assert len(gateway.services["runs"].seen) == 1


@pytest.mark.parametrize("key", [{"Idempotency-Key": "k-1"}, {}], ids=["with-key", "without-key"])
@pytest.mark.parametrize("path", ["/runs", "/runs?x=1", "/runs/batch", "/runs/yaml", "/runs/r1/rerun"])
def test_a_submit_without_an_answer_may_have_been_accepted(stopped_runs, path, key):
    answer = ask(stopped_runs, "POST", path, json={}, headers=key)
    said = (
        "a service is unavailable, and may have accepted the request; repeat it with the same Idempotency-Key, "
        "or look for the run if it had none"
    )
    assert answer.json() == envelope(status=502, message=said, request_id=REQUEST_ID, retryable=bool(key))


def test_a_cancel_without_an_answer_can_be_repeated(stopped_runs):
    answer = ask(stopped_runs, "POST", "/runs/r1/cancel", json={})
    assert answer.json() == envelope(
        status=502, message="a service is unavailable; try again", request_id=REQUEST_ID, retryable=True
    )


@pytest.mark.parametrize(
    ("path", "host", "status"), [("/", "localhost", 404), ("/runs-api/metrics", "evil.example", 421)]
)
def test_the_port_of_the_metrics_answers_with_an_envelope(start_gateway, path, host, status):
    port = free_port()
    start_gateway(metrics_port=port)
    answer = httpx.get(f"http://127.0.0.1:{port}{path}", headers={"Host": host, "X-Request-Id": REQUEST_ID})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert (answer.json()["ok"], answer.json()["error"]["meta"]["request_id"]) == (False, REQUEST_ID)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500, 502, 503, 504])
def test_what_a_service_answers_is_passed_on_unchanged(gateway, status):
    theirs = b'{"ok":false,"of":"the service"}'
    gateway.services["runs"].answer = lambda exchange: exchange.reply(status, theirs, {"X-Own": "1"})
    answer = ask(gateway)
    assert (answer.status_code, answer.content, answer.headers["x-own"]) == (status, theirs, "1")
    assert answer.headers.get_list("x-request-id") == [REQUEST_ID]

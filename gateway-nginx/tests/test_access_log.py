"""Every request leaves one line of JSON with the fields that the log contract requires."""

import json
import re
import time
from datetime import datetime

import pytest

from fleet_testkit.log_check import check_log_lines
from fleet_testkit.waiting import wait_until


def test_a_line_has_the_required_fields(shared_gateway):
    with shared_gateway.client() as client:
        client.post("/runs/r-1/cancel?secret=1", json={}, headers={"X-Request-Id": "log-1"})
    (line,) = shared_gateway.log_lines("log-1")
    assert datetime.fromisoformat(line.pop("ts")).tzinfo is not None
    duration_ms, meta = line.pop("duration_ms"), line.pop("meta")
    assert line == {
        "service": "pyoco-server:http",
        "level": "INFO",
        "logger": "nginx.access",
        "message": "POST /runs/r-1/cancel 200",
        "pathname": "",
        "lineno": 0,
        "func": "",
        "event": "request",
        "component": "gateway",
        "status": "completed",
        "entity_id": "run:r-1",
        "request_id": "log-1",
        "trace_id": "",
    }
    assert type(duration_ms) is int
    assert 0 <= duration_ms < 10_000
    assert meta.pop("bytes") > 0
    assert 0 <= meta.pop("upstream_time") < 10
    assert meta == {
        "method": "POST",
        "path": "/runs/r-1/cancel",
        "status_code": 200,
        "upstream": f"unix:{shared_gateway.services['runs'].socket_path}",
        "remote_addr": "127.0.0.1",
    }


@pytest.mark.parametrize(
    ("path", "entity_id"),
    [
        ("/runs", ""),
        ("/runs/batch", ""),
        ("/runs/watch", ""),
        ("/runs/results", ""),
        ("/runs/batch-7", "run:batch-7"),
        ("/runs/r2/watch", "run:r2"),
        ("/flows/events", ""),
        ("/flows/etl", "flow:etl"),
        ("/workers", ""),
        ("/workers/events", ""),
        ("/workers/w1", "worker:w1"),
        ("/wheels", ""),
        ("/wheels/history?limit=1", ""),
        ("/wheels/a-1.0-py3-none-any.whl", "wheel:a-1.0-py3-none-any.whl"),
        ("/auth/keys/k1/revoke", "key:k1"),
        ("/dlq/7", "letter:7"),
        ("/", ""),
    ],
)
def test_a_line_names_the_run_or_worker_it_is_about(shared_gateway, path, entity_id):
    request_id = "entity" + re.sub(r"[/?=]", ".", path)
    with shared_gateway.client() as client:
        client.get(path, headers={"X-Request-Id": request_id})
    (line,) = shared_gateway.log_lines(request_id)
    assert line["entity_id"] == entity_id


def test_a_failed_request_keeps_its_method_and_says_that_it_failed(shared_gateway):
    with shared_gateway.client(None) as client:
        client.post("/runs", json={}, headers={"X-Request-Id": "log-2"})
    (line,) = shared_gateway.log_lines("log-2")
    assert (line["status"], line["level"], line["message"]) == ("failed", "INFO", "POST /runs 401")
    assert line["meta"]["method"] == "POST"
    assert line["meta"]["upstream_time"] is None
    assert line["meta"]["error_code"] == "UNAUTHENTICATED"


def test_a_service_that_is_down_is_logged_as_an_error(gateway):
    gateway.services["runs"].stop()
    with gateway.client() as client:
        client.get("/runs", headers={"X-Request-Id": "log-3"})
    (line,) = gateway.log_lines("log-3")
    assert (line["status"], line["level"], line["meta"]["status_code"]) == ("failed", "ERROR", 502)
    assert (line["meta"]["error_code"], line["meta"]["provider"]) == ("DEPENDENCY_ERROR", "runs-api")
    assert line["meta"]["retryable"] is True


def test_what_is_not_there_is_named(shared_gateway):
    with shared_gateway.client() as client:
        client.get("/nowhere?secret=1", headers={"X-Request-Id": "log-8"})
    (line,) = shared_gateway.log_lines("log-8")
    assert (line["meta"]["error_code"], line["meta"]["resource"]) == ("NOT_FOUND", "/nowhere")
    assert check_log_lines([json.dumps(line)], of="access log") == 1


def test_a_refused_request_is_logged_with_the_reason(gateway):
    gateway.services["runs"].answer = lambda exchange: exchange.reply(422)
    with gateway.client() as client:
        client.post("/runs", json={}, headers={"X-Request-Id": "log-9"})
    (line,) = gateway.log_lines("log-9")
    assert (line["meta"]["error_code"], line["meta"]["fields"]) == ("VALIDATION_ERROR", [])
    assert line["meta"]["detail"] == "the request cannot be handled"


def test_a_failing_auth_is_named(gateway):
    gateway.services["auth"].stop()
    with gateway.client() as client:
        client.get("/runs", headers={"X-Request-Id": "log-5"})
    (line,) = gateway.log_lines("log-5")
    assert (line["meta"]["status_code"], line["meta"]["provider"]) == (503, "auth")


def test_a_trace_that_the_caller_has_begun_is_named(shared_gateway):
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"X-Request-Id": "log-6", "traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
    with shared_gateway.client() as client:
        client.get("/runs", headers=headers)
    (line,) = shared_gateway.log_lines("log-6")
    assert line["trace_id"] == trace_id


def test_a_key_in_the_path_stays_secret(shared_gateway):
    with shared_gateway.client() as client:
        client.get("/runs/pyoco_k1_" + "x" * 43, headers={"X-Request-Id": "log-7"})
    (line,) = shared_gateway.log_lines("log-7")
    assert line["meta"]["path"] == "(withheld)"
    assert "xxx" not in json.dumps(line)


def test_the_duration_is_in_whole_milliseconds(gateway):
    begun = time.monotonic()

    def answer_late(exchange):
        # Longer than a second: its milliseconds are written in another way than those of a fraction.
        arrived = time.monotonic()
        wait_until(lambda: time.monotonic() - arrived > 1.1, what="1.1 s")
        exchange.reply(200)

    gateway.services["runs"].answer = answer_late
    with gateway.client() as client:
        client.get("/runs", headers={"X-Request-Id": "log-4"})
    took_ms = (time.monotonic() - begun) * 1000
    (line,) = gateway.log_lines("log-4")
    assert 1000 <= line["duration_ms"] <= took_ms + 5
    # All of the service's time is in it.
    assert 1000 <= 1000 * line["meta"]["upstream_time"] <= line["duration_ms"] + 5


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GARBAGE\r\n\r\n",
        b'GET /"\\\x01\xff<> HTTP/1.1\r\nHost: "x\r\n\r\n',
        b'GET /runs/"\\u0000?q="} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: "},\\\r\n\r\n',
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /\r\n",
    ],
    ids=["garbage", "control-characters", "quotes", "long-uri", "tls", "http-0.9"],
)
def test_nothing_a_client_sends_breaks_a_line(gateway, request_bytes):
    gateway.raw_bytes(request_bytes)

    def lines():
        return gateway.access_log.read_bytes().splitlines()

    (line,) = wait_until(lines, what="the access log line")
    assert check_log_lines([line.decode("utf-8")], of="access log") == 1


def test_a_good_health_check_leaves_no_line(shared_gateway):
    with shared_gateway.client() as client:
        assert client.get("/health", headers={"X-Request-Id": "healthy"}).status_code == 200
        client.get("/runs", headers={"X-Request-Id": "after-health"})
    assert shared_gateway.log_lines("after-health")
    assert '"request_id":"healthy"' not in shared_gateway.access_log.read_text()


def test_a_bad_health_check_does(gateway):
    gateway.services["runs"].stop()
    with gateway.client() as client:
        assert client.get("/health", headers={"X-Request-Id": "ill"}).status_code == 502
    (line,) = gateway.log_lines("ill")
    assert line["level"] == "ERROR"

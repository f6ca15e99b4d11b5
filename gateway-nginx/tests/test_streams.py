"""Events arrive while they happen, and uploads flow through instead of piling up."""

import socket
import threading

import pytest

from fleet_testkit.waiting import wait_until

WAIT_SECONDS = 10


@pytest.mark.parametrize(
    ("service", "path"),
    [("runs", "/runs/r1/watch?include=full"), ("runs", "/runs/r1/logs"), ("workers", "/workers/events")],
)
def test_an_event_arrives_before_the_stream_ends(gateway, service, path):
    received = threading.Event()

    def stream(exchange):
        exchange.send_response(200)
        exchange.send_header("Content-Type", "text/event-stream")
        exchange.send_header("Connection", "close")
        exchange.end_headers()
        exchange.wfile.write(b"event: snapshot\ndata: 1\n\n")
        # Goes on only when the client has the first event.
        if received.wait(WAIT_SECONDS):
            exchange.wfile.write(b"event: snapshot\ndata: 2\n\n")
        exchange.close_connection = True

    gateway.services[service].answer = stream
    with gateway.client() as client, client.stream("GET", path) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        chunks = answer.iter_bytes()
        assert next(chunks) == b"event: snapshot\ndata: 1\n\n"
        received.set()
        assert b"".join(chunks) == b"event: snapshot\ndata: 2\n\n"


def test_a_service_may_ask_for_an_unbuffered_answer_anywhere(gateway):
    received = threading.Event()

    def stream(exchange):
        exchange.send_response(200)
        exchange.send_header("X-Accel-Buffering", "no")
        exchange.send_header("Connection", "close")
        exchange.end_headers()
        exchange.wfile.write(b"first")
        if received.wait(WAIT_SECONDS):
            exchange.wfile.write(b"second")
        exchange.close_connection = True

    gateway.services["runs"].answer = stream
    with gateway.client() as client, client.stream("GET", "/artifacts/a") as answer:
        chunks = answer.iter_bytes()
        assert next(chunks) == b"first"
        received.set()
        assert b"".join(chunks) == b"second"


def test_the_service_notices_when_a_watcher_leaves(gateway):
    left = threading.Event()

    def stream(exchange):
        exchange.send_response(200)
        exchange.send_header("Content-Type", "text/event-stream")
        exchange.end_headers()
        exchange.wfile.write(b"data: 1\n\n")
        exchange.connection.settimeout(WAIT_SECONDS)
        if exchange.connection.recv(1) == b"":
            left.set()
        exchange.close_connection = True

    gateway.services["runs"].answer = stream
    with gateway.client() as client, client.stream("GET", "/runs/r1/watch") as answer:
        next(answer.iter_bytes())
    assert left.wait(WAIT_SECONDS)


@pytest.mark.parametrize(("path", "streams"), [("/wheels", True), ("/runs", False)])
def test_a_wheel_streams_through_while_a_json_body_is_collected_first(gateway, path, streams):
    service = gateway.services["wheels" if streams else "runs"]
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "X-API-Key: good", "Content-Length: 8", "Connection: close"]
    head = "\r\n".join([*lines, "", ""])
    with socket.create_connection(("127.0.0.1", gateway.config.port), timeout=WAIT_SECONDS) as connection:
        connection.sendall(head.encode() + b"half")
        wait_until(lambda: gateway.services["auth"].seen, what="auth being asked")
        if streams:
            wait_until(lambda: service.seen, what="the first half reaching the service")
        else:
            # A slow client must not occupy a service: asking for something else shows that nginx went on.
            with gateway.client() as client:
                assert client.get("/workers").status_code == 200
            assert service.seen == []
        connection.sendall(b"half")
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    assert b'"body_bytes": 8' in answer

"""Events arrive while they happen, and uploads flow through instead of piling up."""

import socket
import threading

import pytest

from fleet_testkit.waiting import wait_until

WAIT_SECONDS = 10


def in_two_pieces(gateway, service, path, first, second, **headers):
    """Ask a service that sends the second piece only when the client has the first; return the answer's headers."""
    received = threading.Event()

    def stream(exchange):
        exchange.send_response(200)
        for name, value in headers.items():
            exchange.send_header(name.replace("_", "-"), value)
        exchange.send_header("Connection", "close")
        exchange.end_headers()
        exchange.wfile.write(first)
        if received.wait(WAIT_SECONDS):
            exchange.wfile.write(second)
        exchange.close_connection = True

    gateway.services[service].answer = stream
    with gateway.client() as client, client.stream("GET", path) as answer:
        chunks = answer.iter_bytes()
        assert next(chunks) == first
        received.set()
        assert b"".join(chunks) == second
        return answer.headers


@pytest.mark.parametrize(
    ("service", "path"),
    [
        ("runs", "/runs/r1/watch?include=full"),
        ("runs", "/runs/watch?ids=r1,r2"),
        ("runs", "/runs/r1/logs"),
        ("runs", "/flows/events"),
        ("workers", "/workers/events"),
    ],
)
def test_an_event_arrives_before_the_stream_ends(gateway, service, path):
    events = (b"event: snapshot\ndata: 1\n\n", b"event: snapshot\ndata: 2\n\n")
    headers = in_two_pieces(gateway, service, path, *events, Content_Type="text/event-stream")
    assert headers["content-type"] == "text/event-stream"


def test_a_service_may_ask_for_an_unbuffered_answer_anywhere(gateway):
    in_two_pieces(gateway, "runs", "/artifacts/a", b"first", b"second", X_Accel_Buffering="no")


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

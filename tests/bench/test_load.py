"""The load client against a real server: what it counts is what was answered."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest
from bench.connection import request
from bench.errors import BenchFailed
from bench.load import LoadProcess, hammer

from fleet_testkit.http_servers import serving


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    connections: set[object]
    bodies: list[bytes]

    def do_POST(self) -> None:
        self.connections.add(self.client_address)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(body)
        self.send_response(500 if self.path == "/broken" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # In two pieces, as a network may deliver it.
        for piece in (body[:3], body[3:]):
            self.wfile.write(piece)
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def handler() -> type[Handler]:
    return type("OneTestHandler", (Handler,), {"connections": set(), "bodies": []})


@pytest.fixture
def port(handler: type[Handler]) -> Iterator[int]:
    with serving(handler) as port:
        yield port


def test_every_client_keeps_one_connection_and_the_count_is_exact(port: int, handler: type[Handler]) -> None:
    outcome = hammer(port, request("POST", "/", {"a": 1}), clients=4, seconds=30, count=50)
    assert (outcome.answers, len(outcome.latencies)) == (50, 50)
    assert handler.bodies == [b'{"a":1}'] * 50
    assert len(handler.connections) == 4
    assert 0 < outcome.p50_ms < 1000 * outcome.seconds


def test_a_client_asks_once_however_short_the_time(port: int) -> None:
    assert hammer(port, request("POST", "/", {}), clients=2, seconds=0).answers == 2


def test_an_answer_that_is_no_success_ends_the_load_with_what_was_said(port: int) -> None:
    with pytest.raises(BenchFailed, match=r'500: {"a":1}'):
        hammer(port, request("POST", "/broken", {"a": 1}), clients=2, seconds=30)


def test_the_load_process_answers_and_its_failures_come_back(port: int) -> None:
    with LoadProcess() as load:
        outcome = load.call(hammer, port, request("POST", "/", {}), clients=1, seconds=30, count=3)
        assert outcome.answers == 3
        with pytest.raises(BenchFailed, match="500"):
            load.call(hammer, port, request("POST", "/broken", {}), clients=1, seconds=30)

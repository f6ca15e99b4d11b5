"""The health check of a container follows the readiness of its process."""

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from fleet_testkit.http_servers import serving
from fleet_testkit.nats_server import free_port


class Service(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        assert self.path == "/ready"
        body = b'{"status":"ok"}' if self.status == 200 else b'{"waiting_for":["nats"]}'
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def port() -> Iterator[int]:
    with serving(Service) as port:
        yield port


def probe(*arguments: str, **env: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "fleet_kit.telemetry.probe", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


def test_a_process_that_is_ready_is_healthy(port: int) -> None:
    assert probe(str(port)) == (0, '{"status":"ok"}')
    assert probe(PYOCO_PORT=str(port))[0] == 0


def test_one_that_waits_for_something_is_not_and_says_for_what(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "status", 503)
    assert probe(str(port)) == (1, '{"waiting_for":["nats"]}')


def test_one_that_does_not_answer_is_not() -> None:
    code, said = probe(str(free_port()))
    assert code == 1
    assert said.startswith("the service does not answer")

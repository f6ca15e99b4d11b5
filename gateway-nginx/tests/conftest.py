"""A real nginx in front of tiny real services that say what reached them."""

import contextlib
import json
import re
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet_gateway.config import GatewayConfig
from fleet_gateway.render import nginx_command, render
from fleet_testkit.log_check import check_log_lines, whole_lines
from fleet_testkit.nats_server import free_port
from fleet_testkit.waiting import wait_until

SERVICES = ("runs", "workers", "wheels", "auth")


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: str, handler: type[BaseHTTPRequestHandler]) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(path, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        """A process that dies takes its kept-alive connections with it."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Seen:
    """A request as it reached a service."""

    command: str
    path: str
    headers: Message
    connection: socket.socket


class Exchange(BaseHTTPRequestHandler):
    """A connection to a service; `answer` decides what comes back."""

    protocol_version = "HTTP/1.1"
    service: "Service"

    def handle_one_request(self) -> None:
        # A gateway that goes away in mid-answer is what some tests are about.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            super().handle_one_request()

    def exchange(self) -> None:
        self.service.seen.append(Seen(self.command, self.path, self.headers, self.connection))
        self.service.answer(self)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = exchange  # noqa: N815 - http.server's names

    def read_body(self) -> int | None:
        """How many bytes the body has; None if it broke off."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            length = int(self.headers.get("Content-Length", 0))
            return length if len(self.rfile.read(length)) == length else None
        total = 0
        while size_line := self.rfile.readline():
            size = int(size_line, 16)
            total += size
            if len(self.rfile.read(size + 2)) < size + 2:
                return None
            if size == 0:
                return total
        return None

    def reply(self, status: int = 200, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def address_string(self) -> str:
        return "gateway"

    def log_message(self, *_: Any) -> None:
        pass


def echo(exchange: Exchange) -> None:
    """Answer with what was asked."""
    body_bytes = exchange.read_body()
    if body_bytes is None:
        exchange.close_connection = True
        return
    received = {
        "service": exchange.service.name,
        "method": exchange.command,
        "path": exchange.path,
        "headers": {name.lower(): value for name, value in exchange.headers.items()},
        "body_bytes": body_bytes,
    }
    exchange.reply(200, json.dumps(received).encode(), {"Content-Type": "application/json", "X-Request-Id": "theirs"})


def verify(exchange: Exchange) -> None:
    """Play auth: a key `good-x` belongs to the tenant `tenant-good-x`; everything but /verify is echoed."""
    if exchange.path != "/verify":
        echo(exchange)
        return
    key = exchange.headers.get("X-API-Key")
    if not key:
        exchange.reply(401, b"{}")
    elif not key.startswith("good"):
        exchange.reply(403, b"{}")
    else:
        exchange.reply(
            204,
            headers={
                "X-Pyoco-Tenant-Id": f"tenant-{key}",
                "X-Pyoco-Api-Key-Id": f"id-{key}",
                "X-Pyoco-Scopes": "runs:read runs:write",
            },
        )


class Service:
    """A service on a unix socket; a test may change its answers, stop it and start it again."""

    def __init__(self, name: str, socket_path: Path, answer: Callable[[Exchange], None]) -> None:
        self.name = name
        self.socket_path = socket_path
        self.answer = answer
        self.seen: list[Seen] = []
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        handler = type("BoundExchange", (Exchange,), {"service": self})
        self._server = _Server(str(self.socket_path), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.drop_connections()
        self.socket_path.unlink(missing_ok=True)
        self._server = self._thread = None


class Gateway:
    """nginx on a port of its own with its four services; `stop` always ends all of it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.access_log = folder / "access.log"
        self.services = {
            name: Service(name, folder / f"{name}.sock", verify if name == "auth" else echo) for name in SERVICES
        }
        self.config = GatewayConfig(
            port=free_port(),
            access_log=self.access_log,
            **{f"{name}_upstream": f"unix:{service.socket_path}" for name, service in self.services.items()},
            **{"temp_dir": folder / "tmp", **options},
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.config.port}"

    @property
    def error_log(self) -> Path:
        return self.folder / "error.log"

    def start(self) -> None:
        for service in self.services.values():
            service.start()
        main = render(self.config, self.folder)
        with self.error_log.open("ab") as log:
            self._process = subprocess.Popen(nginx_command(main), stdout=log, stderr=log)
        wait_until(self._listens, within=30, what="nginx listening")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=30)
            self._process = None
        for service in self.services.values():
            service.stop()

    def client(self, key: str | None = "good") -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"X-API-Key": key} if key else {}, timeout=30)

    def raw(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send what no well-behaved client would send; returns status, headers and body."""
        head, _, body = self.raw_bytes(request).partition(b"\r\n\r\n")
        status_line, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return int(status_line.split()[1]), headers, body

    def raw_bytes(self, request: bytes) -> bytes:
        with socket.create_connection((self.config.host, self.config.port), timeout=30) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(request)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while not _is_complete(received) and (chunk := connection.recv(65536)):
                    received += chunk
        return received

    def log_lines(self, request_id: str) -> list[dict[str, Any]]:
        """The lines of one request; nginx writes them just after it has answered."""

        def look() -> list[dict[str, Any]]:
            text = list(whole_lines(self.access_log)) if self.access_log.exists() else []
            check_log_lines(text, of="access log")
            lines = [json.loads(line) for line in text if line]
            return [line for line in lines if line["request_id"] == request_id]

        return wait_until(look, what=f"an access log line of {request_id}")

    def _listens(self) -> bool:
        assert self._process
        assert self._process.poll() is None, self.error_log.read_text()
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self.config.host, self.config.port), timeout=0.5),
        ):
            return True
        return False


def _is_complete(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"\r\nContent-Length: (\d+)", head)
    return length is not None and len(body) >= int(length.group(1))


@pytest.fixture
def start_gateway(short_folder: Callable[[], Path]) -> Iterator[Callable[..., Gateway]]:
    """Start gateways with options of the test's own."""
    started: list[Gateway] = []

    def start(**options: Any) -> Gateway:
        gateway = Gateway(short_folder(), **options)
        started.append(gateway)
        gateway.start()
        return gateway

    yield start
    for gateway in started:
        gateway.stop()


@pytest.fixture(scope="module")
def shared_gateway(short_folder: Callable[[], Path]) -> Iterator[Gateway]:
    """One gateway for the tests of a module that leave it as they found it."""
    gateway = Gateway(short_folder(), body_limit_bytes=10_000, batch_body_limit_bytes=20_000, wheel_max_bytes=30_000)
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture
def gateway(start_gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway whose services the test may stop or change."""
    return start_gateway()

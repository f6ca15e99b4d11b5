"""A real HTTP server that answers each request as the test says, also with what no server should send."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pyoco_fleet import AsyncPyocoHttpClient, PyocoHttpClient, Retries

HANG_UP = b""


def answer(status: int = 200, body: Any = None, **headers: str) -> bytes:
    text = json.dumps(body).encode() if not isinstance(body, bytes) else body
    lines = [f"HTTP/1.1 {status} Said", "Content-Type: application/json", f"Content-Length: {len(text)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + text


def problem(status: int, message: str, err_id: str | None = None, **meta: Any) -> bytes:
    known = {"request_id": "req-1", "err_id": err_id, **meta}
    error = {"code": "SOME_CODE", "message": message, "meta": known}
    return answer(status, {"ok": False, "error": error, "detail": message})


def events(*texts: str, complete: bool = True) -> bytes:
    """A stream of events; not complete: the connection breaks in the middle of it."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(f"{len(text.encode()):x}\r\n".encode() + text.encode() + b"\r\n" for text in texts)
    return head + chunks + (b"0\r\n\r\n" if complete else b"")


class ScriptedServer:
    """Answers the n-th request with the n-th of its answers, and with the last one from then on."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.requests: list[str] = []
        # How long it thinks about each answer.
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # Without it a thread in accept() goes on.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def headers(self, name: str) -> list[str | None]:
        """What the requests had in a header, in their order."""
        found = []
        for request in self.requests:
            lines = dict(line.lower().split(": ", 1) for line in request.split("\r\n\r\n")[0].split("\r\n")[1:])
            found.append(lines.get(name.lower()))
        return found

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while request := _read_request(connection):
                with self._lock:
                    self.requests.append(request)
                    said = self.answers[min(len(self.requests), len(self.answers)) - 1]
                time.sleep(self.seconds)
                connection.sendall(said)
                if b"Content-Length" not in said:
                    return


def _read_request(connection: socket.socket) -> str | None:
    received = b""
    while b"\r\n\r\n" not in received:
        if not (part := connection.recv(65536)):
            return None
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += connection.recv(65536)
    return (head + b"\r\n\r\n" + body).decode(errors="replace")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    with suppress(OSError):
        server.close()


QUICK = Retries(first_wait_seconds=0.005, seconds=5)


class Both:
    """The blocking or the asynchronous client, used in the same way."""

    def __init__(self, url: str, kind: str) -> None:
        self._url = url
        self._kind = kind

    def do(self, use: Callable[[Any], Any], *, retries: Retries = QUICK, **options: Any) -> Any:
        if self._kind == "blocking":
            with PyocoHttpClient(self._url, retries=retries, **options) as client:
                done = use(client)
                return list(done) if isinstance(done, Iterator) else done

        async def main() -> Any:
            async with AsyncPyocoHttpClient(self._url, retries=retries, **options) as client:
                done = use(client)
                return [item async for item in done] if isinstance(done, AsyncIterator) else await done

        return asyncio.run(main())


@pytest.fixture(params=["blocking", "asyncio"])
def client(request: pytest.FixtureRequest, server: ScriptedServer) -> Both:
    return Both(server.url, request.param)

"""A kept HTTP/1.1 connection over a raw socket: as little work per request as asyncio allows."""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import cast

from .errors import BenchFailed

HOST = "127.0.0.1"

_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_END_OF_HEAD = b"\r\n\r\n"


def request(method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a request, made once and sent many times."""
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n{more}"
    if body is None:
        return f"{head}\r\n".encode()
    content = json.dumps(body, separators=(",", ":")).encode()
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def submit_request(
    flow_name: str,
    *,
    tag: str,
    params: dict[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    body = {"flow_name": flow_name, "params": params or {}, "tag": tag}
    return request("POST", "/runs", body, headers=headers)


class Connection(asyncio.Protocol):
    """One request at a time; any answer but 200 is a failure."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, port: int) -> "Connection":
        _, connection = await asyncio.get_running_loop().create_connection(cls, HOST, port)
        return connection

    async def ask(self, sent: bytes) -> bytes:
        """The body of the answer."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(sent)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(_END_OF_HEAD)
        if not end:
            return
        length = _CONTENT_LENGTH.search(head)
        if length is None:
            self._fail("an answer has no Content-Length")
        elif len(body) >= int(length[1]):
            self._received = b""
            status = head[9:12]
            if status != b"200":
                self._fail(f"the answer was {status.decode()}: {body[:300].decode(errors='replace')}")
            elif self._answer is not None and not self._answer.done():
                self._answer.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the server closed the connection ({exc or 'end of file'})")

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BenchFailed(why))

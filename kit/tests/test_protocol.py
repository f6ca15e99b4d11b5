"""Bytes that are no request, as the gateway passes a few on: the answer is an envelope all the same."""

import asyncio
import json
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from fleet_kit.errors import envelope
from fleet_kit.http.protocol import EnvelopeProtocol


async def _never_asked(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("this is no request")


@pytest.mark.parametrize(
    ("head", "request_id"),
    [
        (b"GET /runs HTTP/1.1\r\nX-Request-Id: r-1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "r-1"),
        (b"nonsense\r\n\r\n", None),
    ],
)
async def test_a_request_that_the_parser_refuses_is_answered_with_an_envelope(
    head: bytes, request_id: str | None
) -> None:
    config = uvicorn.Config(_never_asked, log_config=None)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: EnvelopeProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    async with server, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(head)
        answer = await reader.read()  # to its end: the connection is closed
        writer.close()
    status, _, rest = answer.partition(b"\r\n")
    lines, _, body = rest.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in lines.decode().split("\r\n"))
    error = json.loads(body)
    assert status == b"HTTP/1.1 400 Bad Request"
    assert (headers["content-type"], int(headers["content-length"])) == ("application/json", len(body))
    assert headers["x-request-id"] == error["error"]["meta"]["request_id"]
    assert request_id in (headers["x-request-id"], None)
    assert error == envelope(status=400, message="the request is malformed", request_id=headers["x-request-id"])

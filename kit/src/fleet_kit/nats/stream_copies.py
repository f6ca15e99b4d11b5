"""Backup and restore of whole streams by JetStream's own API: messages, sequences, times, settings."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error, NoRespondersError
from nats.js.errors import NotFoundError

from ..errors import NatsUnavailable
from .link import NatsLink

_API = "$JS.API.STREAM"
# The chunks are well below the maximum payload, and few enough for the server to have them in flight.
_CHUNK_BYTES = 256 * 1024
_WINDOW_BYTES = 2 * 1024 * 1024
_SILENCE_SECONDS = 30.0
# In a cluster it takes a moment until our server knows that another one listens.
_NO_RESPONDER_SECONDS = 10.0
_AGAIN_SECONDS = 0.05
_END = "204"

Description = dict[str, Any]


class CopyFailed(NatsUnavailable):
    """A stream could not be copied."""


async def copy_stream(link: NatsLink, stream: str) -> AsyncIterator[Description | bytes]:
    """A snapshot of one stream: first its settings and state, then the pieces that a restore sends back.

    Consumers are not included.
    """
    client = link.client
    inbox = client.new_inbox()
    arriving = await client.subscribe(inbox, pending_bytes_limit=-1)
    try:
        answer = await _ask(
            client,
            f"{_API}.SNAPSHOT.{stream}",
            {
                "deliver_subject": inbox,
                "no_consumers": True,
                "chunk_size": _CHUNK_BYTES,
                "window_size": _WINDOW_BYTES,
            },
        )
        yield {"config": answer["config"], "state": answer["state"]}
        while (chunk := await arriving.next_msg(timeout=_SILENCE_SECONDS)).data:
            yield chunk.data
            if chunk.reply:
                await client.publish(chunk.reply, b"")
        headers = chunk.headers or {}
        if (status := headers.get("Status", _END)) != _END:
            reason = headers.get("Description", status)
            raise CopyFailed(f"NATS stopped in the middle of {stream} ({reason}); try again")
    except Error as error:
        raise CopyFailed(f"NATS did not send all of {stream} ({error!r}); try again") from error
    finally:
        await arriving.unsubscribe()


class StreamRestore:
    """Restores a stream from a copy. The stream appears only when all of it has been sent."""

    def __init__(self, link: NatsLink, description: Description) -> None:
        self._client = link.client
        self._description = description
        self.stream: str = description["config"]["name"]
        self._subject = ""

    async def begin(self) -> None:
        answer = await _ask(self._client, f"{_API}.RESTORE.{self.stream}", self._description)
        self._subject = answer["deliver_subject"]

    async def send(self, piece: bytes) -> None:
        await _send(self._client, self._subject, piece)

    async def end(self) -> None:
        answer = await _send(self._client, self._subject, b"")
        found, wanted = answer["state"]["messages"], self._description["state"]["messages"]
        if found != wanted:
            raise CopyFailed(f"{self.stream} has {found} messages now and had {wanted}; do not use it")


async def existing_streams(link: NatsLink, streams: list[str]) -> list[str]:
    """Those of the given streams that exist."""
    found = []
    for stream in streams:
        try:
            await link.jetstream.stream_info(stream)
        except NotFoundError:
            continue
        found.append(stream)
    return found


async def _ask(client: Client, subject: str, wanted: Description) -> Description:
    return await _send(client, subject, orjson.dumps(wanted))


async def _request(client: Client, subject: str, content: bytes) -> Msg:
    """A request that is repeated as long as it has reached no server."""
    deadline = time.monotonic() + _NO_RESPONDER_SECONDS
    while True:
        try:
            return await client.request(subject, content, timeout=_SILENCE_SECONDS)
        except NoRespondersError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_AGAIN_SECONDS)


async def _send(client: Client, subject: str, content: bytes) -> Description:
    try:
        answer = await _request(client, subject, content)
    except (TimeoutError, Error) as error:
        raise CopyFailed(f"NATS does not answer on {subject} ({error!r}); try again") from error
    reply: Description = orjson.loads(answer.data) if answer.data else {}
    if "error" in reply:
        raise CopyFailed(f"NATS refuses: {reply['error'].get('description')}")
    return reply

"""Backup and restore of whole streams by JetStream's own API: messages, sequences, times, settings."""

from collections.abc import AsyncIterator
from typing import Any, cast

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.errors import NotFoundError

from ..errors import NatsUnavailable
from .link import NatsLink

_API = "$JS.API.STREAM"
# The chunks are well below the maximum payload, and few enough for the server to have them in flight.
_CHUNK_BYTES = 256 * 1024
_WINDOW_BYTES = 2 * 1024 * 1024
_SILENCE_SECONDS = 30.0
_END = "204"

Description = dict[str, Any]


class CopyFailed(NatsUnavailable):
    """A stream could not be copied."""


class StreamCopy:
    """A snapshot of one stream at one moment: its description, then its content piece by piece."""

    def __init__(self, link: NatsLink, stream: str) -> None:
        self._client: Client = link.client
        self._stream = stream

    async def pieces(self) -> AsyncIterator[Description | bytes]:
        """Yields settings and state first, then the pieces that a restore sends back. Consumers are not included."""
        inbox = self._client.new_inbox()
        arriving = await self._client.subscribe(inbox, pending_bytes_limit=-1)
        try:
            wanted = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": _CHUNK_BYTES}
            answer = await _ask(
                self._client, f"{_API}.SNAPSHOT.{self._stream}", {**wanted, "window_size": _WINDOW_BYTES}
            )
            yield {"config": answer["config"], "state": answer["state"]}
            while True:
                chunk = await arriving.next_msg(timeout=_SILENCE_SECONDS)
                if not chunk.data:
                    _refuse_early_end(chunk, self._stream)
                    return
                yield chunk.data
                if chunk.reply:
                    await self._client.publish(chunk.reply, b"")
        except Error as error:
            raise CopyFailed(f"NATS did not send all of {self._stream} ({error!r}); try again") from error
        finally:
            await arriving.unsubscribe()


class StreamRestore:
    """Restores a stream from a copy. The stream appears only when all of it has been sent."""

    def __init__(self, link: NatsLink, description: Description) -> None:
        self._client: Client = link.client
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


async def _send(client: Client, subject: str, content: bytes) -> Description:
    try:
        answer = await client.request(subject, content, timeout=_SILENCE_SECONDS)
    except (TimeoutError, Error) as error:
        raise CopyFailed(f"NATS does not answer on {subject} ({error!r}); try again") from error
    reply: Description = orjson.loads(answer.data) if answer.data else {}
    if "error" in reply:
        raise CopyFailed(f"NATS refuses: {cast('dict[str, Any]', reply['error']).get('description')}")
    return reply


def _refuse_early_end(last: Msg, stream: str) -> None:
    """Raise CopyFailed if the last message has another status than the regular end."""
    status = (last.headers or {}).get("Status", _END)
    if status != _END:
        reason = (last.headers or {}).get("Description", status)
        raise CopyFailed(f"NATS stopped in the middle of {stream} ({reason}); try again")

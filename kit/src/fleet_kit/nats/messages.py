"""Reads messages of a stream without a consumer.

In a cluster any server that has the stream answers, usually the nearest, and it may lag: newer messages may exist. A
lasting decision based on a missing message needs a `linearizable` read: the stream's leader answers it, and without a
leader it fails.
"""

import base64
from dataclasses import dataclass
from datetime import datetime

import nats.errors
import orjson
from nats.aio.msg import Msg
from nats.js import api

from ..errors import NatsUnavailable
from .client import NotPermitted
from .link import NatsLink

_NO_MESSAGE = 10037


@dataclass(frozen=True, slots=True)
class StoredMessage:
    subject: str
    sequence: int
    headers: dict[str, str]
    data: bytes
    # When JetStream stored it, in unix seconds by its own clock.
    stored_at: float = 0.0


async def stored_message(
    link: NatsLink, stream: str, sequence: int, *, linearizable: bool = False
) -> StoredMessage | None:
    """The message with a sequence number; None if it is gone."""
    wanted: dict[str, object] = {"seq": sequence}
    if linearizable:
        return await _ask_leader(link, stream, wanted)
    return await _look_up(link, stream, f"$JS.API.DIRECT.GET.{stream}", orjson.dumps(wanted), wanted)


async def last_message(
    link: NatsLink, stream: str, subject: str, *, linearizable: bool = False
) -> StoredMessage | None:
    """The latest message of a subject; None if there is none."""
    if linearizable:
        try:
            return await _ask_leader(link, stream, {"last_by_subj": subject})
        except NatsUnavailable as error:
            # Older credentials of workers do not permit this: fall back to a direct get.
            if not isinstance(error.__cause__, NotPermitted):
                raise
    # The request's subject contains the subject to read, so that permissions can allow single subjects of a stream.
    return await _look_up(link, stream, f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", {"last_by_subj": subject})


async def latest_message(link: NatsLink, stream: str, pattern: str) -> StoredMessage | None:
    """The latest message of all subjects that match a pattern; None if there is none."""
    wanted: dict[str, object] = {"last_by_subj": pattern}
    return await _look_up(link, stream, f"$JS.API.DIRECT.GET.{stream}", orjson.dumps(wanted), wanted)


async def messages_of(
    link: NatsLink, stream: str, subject: str, *, after: int = 0, limit: int = 100, max_bytes: int = 1024 * 1024
) -> list[StoredMessage]:
    """The next messages of a subject after a sequence number, oldest first; empty if there are no more.

    There may be fewer than `limit`: a page ends with the message that reaches `max_bytes`, and a server without
    batches (before 2.11), or a stream without direct gets, gives one at a time.
    """
    wanted: dict[str, object] = {"seq": after + 1, "next_by_subj": subject}
    batch = orjson.dumps({**wanted, "batch": limit, "max_bytes": max_bytes})
    answers = await link.request_many(f"$JS.API.DIRECT.GET.{stream}", batch, is_last=_ends_batch)
    headers = answers[-1].headers or {}
    match headers.get("Status"):
        case "503":
            message = await _ask_leader(link, stream, wanted)
            return [] if message is None else [message]
        case None | "204" | "404":
            return [_stored(answer) for answer in answers if "Status" not in (answer.headers or {})]
        case status:
            raise _unreadable(stream, status, headers)


async def stream_identity(link: NatsLink, stream: str) -> str:
    """An id of a stream from its creation time: a lost and recreated stream is another, and counts from 1 again."""
    return identity_of(await link.stream_info(stream))


def identity_of(info: api.StreamInfo) -> str:
    return f"{round(info.created.timestamp() * 1_000_000):x}" if info.created else "0"


def _ends_batch(answer: Msg) -> bool:
    """A status ends a batch; a message without a pending count is the only one."""
    headers = answer.headers or {}
    return "Status" in headers or "Nats-Num-Pending" not in headers


async def _look_up(
    link: NatsLink, stream: str, place: str, request: bytes, wanted: dict[str, object]
) -> StoredMessage | None:
    try:
        answer = await link.request(place, request)
    except NatsUnavailable as error:
        # A stream that was not made by us may not allow direct gets: then the leader is asked.
        if not isinstance(error.__cause__, nats.errors.NoRespondersError):
            raise
        return await _ask_leader(link, stream, wanted)
    headers = answer.headers or {}
    if (status := headers.get("Status")) is not None:
        if status == "404":
            return None
        raise _unreadable(stream, status, headers)
    return _stored(answer)


async def _ask_leader(link: NatsLink, stream: str, wanted: dict[str, object]) -> StoredMessage | None:
    answer = orjson.loads((await link.request_api(f"STREAM.MSG.GET.{stream}", orjson.dumps(wanted))).data)
    if (error := answer.get("error")) is not None:
        if error.get("err_code") == _NO_MESSAGE:
            return None
        raise NatsUnavailable(f"JetStream could not read {stream}: {error.get('description')}")
    message = answer["message"]
    lines = base64.b64decode(message.get("hdrs", "")).decode("latin-1").split("\r\n")[1:]
    headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
    data = base64.b64decode(message.get("data", ""))
    return StoredMessage(message["subject"], message["seq"], headers, data, unix_seconds(message.get("time")))


def _stored(answer: Msg) -> StoredMessage:
    headers = dict(answer.headers or {})
    return StoredMessage(
        subject=headers.get("Nats-Subject", ""),
        sequence=int(headers.get("Nats-Sequence", 0)),
        headers=headers,
        data=answer.data,
        stored_at=unix_seconds(headers.get("Nats-Time-Stamp")),
    )


def unix_seconds(text: str | None) -> float:
    """A JetStream time stamp in unix seconds; 0 if there is none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _unreadable(stream: str, status: str, headers: dict[str, str]) -> NatsUnavailable:
    return NatsUnavailable(f"JetStream could not read {stream}: {status} {headers.get('Description', '')}")

"""Look at single messages of a stream."""

import base64
from dataclasses import dataclass

import nats.errors
import orjson

from .errors import NatsUnavailable
from .nats import NatsLink

_NO_MESSAGE = 10037


@dataclass(frozen=True, slots=True)
class StoredMessage:
    subject: str
    sequence: int
    headers: dict[str, str]
    data: bytes


async def stored_message(link: NatsLink, stream: str, sequence: int) -> StoredMessage | None:
    """The message at a place in a stream; None if it is gone."""
    return await _look_up(link, stream, {"seq": sequence})


async def last_message(link: NatsLink, stream: str, subject: str) -> StoredMessage | None:
    """The latest message of a subject; None if there is none."""
    return await _look_up(link, stream, {"last_by_subj": subject})


async def _look_up(link: NatsLink, stream: str, wanted: dict[str, object]) -> StoredMessage | None:
    try:
        answer = await link.request(f"$JS.API.DIRECT.GET.{stream}", orjson.dumps(wanted))
    except NatsUnavailable as error:
        # A stream that somebody else made may not allow direct gets: then the leader is asked.
        if not isinstance(error.__cause__, nats.errors.NoRespondersError):
            raise
        return await _ask_leader(link, stream, wanted)
    headers = dict(answer.headers or {})
    if (status := headers.get("Status")) is not None:
        if status == "404":
            return None
        raise NatsUnavailable(f"JetStream could not read {stream}: {status} {headers.get('Description', '')}")
    return StoredMessage(headers.get("Nats-Subject", ""), int(headers.get("Nats-Sequence", 0)), headers, answer.data)


async def _ask_leader(link: NatsLink, stream: str, wanted: dict[str, object]) -> StoredMessage | None:
    answer = orjson.loads((await link.request(f"$JS.API.STREAM.MSG.GET.{stream}", orjson.dumps(wanted))).data)
    if (error := answer.get("error")) is not None:
        if error.get("err_code") == _NO_MESSAGE:
            return None
        raise NatsUnavailable(f"JetStream could not read {stream}: {error.get('description')}")
    message = answer["message"]
    lines = base64.b64decode(message.get("hdrs", "")).decode("latin-1").split("\r\n")[1:]
    headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
    return StoredMessage(message["subject"], message["seq"], headers, base64.b64decode(message.get("data", "")))

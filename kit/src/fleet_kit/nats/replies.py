"""Matches the acks and answers of NATS to the publishes and requests that wait for them.

Many publishes may be in flight, as with the library's `publish_async`. There a publish without an ack keeps one of
4,000 places for ever; here it fails after a timeout, or at once when the connection is lost or the subject denied.
Figures are in ADR 13.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg

from ..errors import NatsUnavailable
from .client import NotPermitted
from .outages import NoSpaceLeft
from .timeouts import RequestTimeouts

_WRONG_LAST_SEQUENCE = (10071, 10164)
# How long a full disk is reported after a refused write, unless a later write succeeds.
_FULL_SECONDS = 30.0


class WrongRevision(Exception):
    """The key has another revision than expected: it was written since it was read."""


class NatsSilent(NatsUnavailable):
    """NATS did not answer in time; try again."""


class WriteRefused(NatsUnavailable):
    """JetStream refused the write."""


class WriteDenied(WriteRefused):
    """NATS let a write to this subject not pass. It does not say which: this one may have been stored before."""


@dataclass(frozen=True, slots=True)
class Ack:
    stream: str
    sequence: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class _Pending:
    """A message that waits for its answer."""

    subject: str
    future: asyncio.Future[Any]

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            # Marks the exception as retrieved: there may be no waiter left.
            self.future.exception()


@dataclass(frozen=True, slots=True)
class _Request(_Pending):
    is_last: Callable[[Msg], bool]
    # Keeps waiting until its timeout when the connection is lost: NATS is often back by then, and a caller that
    # failed at once could not even report it.
    outlives_connection: bool
    answers: list[Msg] = field(default_factory=list)


class Replies:
    """The pending publishes and requests of a connection. Errors of the library pass through."""

    def __init__(self, client: Client, *, timeout_seconds: float, on_silence: Callable[[], None]) -> None:
        """`on_silence` is called when JetStream has answered no write for the length of the timeout."""
        self._client = client
        self._on_silence = on_silence
        self._publishes: dict[str, _Pending] = {}
        self._requests: dict[str, _Request] = {}
        self._tokens = itertools.count()
        self._ack_prefix = ""
        self._answer_prefix = ""
        self._timeout_seconds = timeout_seconds
        self._timeouts = RequestTimeouts(timeout_seconds, self._time_out)
        # Since when JetStream has answered no write at all, not even with a refusal.
        self._silent_since: float | None = None
        self._full_until = float("-inf")

    @property
    def is_storage_full(self) -> bool:
        """Whether JetStream refused the latest write because its disk is full."""
        return time.monotonic() < self._full_until

    async def listen(self) -> None:
        self._ack_prefix = await self._subscribe(self._on_ack)
        # A subscription apart from the acks: many large answers at once must not push out the ack of a write.
        self._answer_prefix = await self._subscribe(self._on_answer)

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str] | None) -> asyncio.Future[Ack]:
        token = str(next(self._tokens))
        future: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._publishes[token] = _Pending(subject, future)
        try:
            await self._client.publish(subject, payload, reply=self._ack_prefix + token, headers=headers)
        except BaseException:
            del self._publishes[token]
            raise
        self._timeouts.watch(token, future)
        return future

    async def ask(
        self, subject: str, payload: bytes, *, is_last: Callable[[Msg], bool], outlives_connection: bool
    ) -> list[Msg]:
        """The answers to a request up to the one that `is_last`; TimeoutError if they did not all come in time."""
        token = str(next(self._tokens))
        request = _Request(subject, asyncio.get_running_loop().create_future(), is_last, outlives_connection)
        self._requests[token] = request
        try:
            await self._client.publish(subject, payload, reply=self._answer_prefix + token)
            self._timeouts.watch(token, request.future)
            await request.future
        finally:
            del self._requests[token]
        return request.answers

    def deny(self, denied: str) -> None:
        """Fail all pending messages to a denied subject, because the server does not name one; some may be stored."""
        for publish in self._publishes.values():
            if publish.subject.lower() == denied:
                publish.fail(WriteDenied(f"NATS refused the write: {NotPermitted(publish.subject)}"))
        for request in self._requests.values():
            if request.subject.lower() == denied:
                request.fail(NotPermitted(request.subject))

    def fail(self, reason: str, *, on_disconnect: bool = False) -> None:
        """Fail all pending messages; a disconnect leaves the requests that outlive it."""
        self._silent_since = None
        requests = (r for r in self._requests.values() if not (on_disconnect and r.outlives_connection))
        for pending in (*self._publishes.values(), *requests):
            pending.fail(NatsUnavailable(f"NATS is unavailable ({reason}); try again when it is back"))

    def close(self) -> None:
        self.fail("the process is stopping")
        self._timeouts.close()

    async def _subscribe(self, on_message: Callable[[Msg], Awaitable[None]]) -> str:
        """Subscribe to a new inbox. Returns the prefix of its reply subjects; a token completes one."""
        inbox = self._client.new_inbox()
        await self._client.subscribe(f"{inbox}.*", cb=on_message)
        return f"{inbox}."

    async def _on_ack(self, msg: Msg) -> None:
        publish = self._publishes.pop(msg.subject[len(self._ack_prefix) :], None)
        if publish is None or publish.future.done():
            return
        if msg.headers and msg.headers.get("Status") == "503":
            self._note_silence(since=asyncio.get_running_loop().time())
            publish.future.set_exception(NatsUnavailable("NATS is unavailable (no stream takes this subject)"))
            return
        self._silent_since = None
        answer: dict[str, Any] = orjson.loads(msg.data)
        error = answer.get("error")
        is_full = error is not None and NoSpaceLeft.is_meant_by(error)
        self._full_until = time.monotonic() + _FULL_SECONDS if is_full else float("-inf")
        if error is not None:
            publish.future.set_exception(_refusal(error))
        else:
            publish.future.set_result(Ack(answer["stream"], answer["seq"], answer.get("duplicate", False)))

    async def _on_answer(self, msg: Msg) -> None:
        request = self._requests.get(msg.subject[len(self._answer_prefix) :])
        if request is None or request.future.done():
            return
        request.answers.append(msg)
        if request.is_last(msg):
            request.future.set_result(None)

    def _time_out(self, token: str, since: float) -> None:
        """Fail a publish or a request that has reached the request timeout."""
        if (publish := self._publishes.pop(token, None)) is not None:
            if not publish.future.done():
                self._note_silence(since=since)
            publish.fail(NatsSilent())
        elif (request := self._requests.get(token)) is not None:
            request.fail(TimeoutError())

    def _note_silence(self, *, since: float) -> None:
        """Note an unanswered write. If none was answered for too long, our server may be the cause."""
        self._silent_since = since if self._silent_since is None else min(self._silent_since, since)
        if asyncio.get_running_loop().time() - self._silent_since >= self._timeout_seconds:
            self._silent_since = None
            self._on_silence()


def _refusal(error: dict[str, Any]) -> Exception:
    if error.get("err_code") in _WRONG_LAST_SEQUENCE:
        return WrongRevision(error.get("description", ""))
    if NoSpaceLeft.is_meant_by(error):
        return NoSpaceLeft()
    return WriteRefused(f"JetStream refused the write: {error.get('description', 'no reason given')}")

"""The connection to NATS: reconnects for ever, reports why it is down, pipelines JetStream publishes."""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import nats.errors
import nats.js.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api

from fleet_contracts.nats_roles import inbox_prefix
from fleet_contracts.problems import Problem

from ..errors import NatsUnavailable
from ..logs.rate_limit import RateLimitedLog
from ..logs.setup import problem_fields
from ..settings import FleetSettings
from ..telemetry.tracing import current
from .client import HeartbeatJetStream, NotPermitted, ReconnectingClient, denied_subject, explained
from .outages import OUTAGES, NoSpaceLeft, StorageFull, WriteSilence
from .timeouts import RequestTimeouts

logger = logging.getLogger(__name__)

_CANCEL_AGAIN_SECONDS = 0.25
# A server behind a broken network sends nothing: after three unanswered pings it counts as lost.
_PING_SECONDS = 2
# In total longer than a reload of the users (1.5 ms measured); costs time only where the likeliest name is wrong.
_API_NAME_PAUSES_SECONDS = (0.05, 0.15, 0.3)
_WRONG_LAST_SEQUENCE = (10071, 10164)

Hook = Callable[[], Awaitable[object]]


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


class NatsLink:
    """The NATS connection of a process: an async context manager; `hooks` run after every (re)connect.

    The link is `ready` once it is connected and every hook has succeeded since then; hooks that fail are retried
    until they succeed or the connection is lost.

    Of several servers it stays with one on which JetStream works: a server that has lost its cluster still accepts
    clients, but cannot serve them.
    """

    def __init__(self, settings: FleetSettings, *, name: str, api_prefixes: Sequence[str] = ("$JS.API",)) -> None:
        """`api_prefixes`: the prefixes that JetStream's API may have for our user, the likeliest first."""
        self._settings = settings
        self._name = name
        self._api_prefixes = list(api_prefixes)
        self._client = ReconnectingClient()
        self._hooks: list[Hook] = []
        self._prepared = asyncio.Event()
        self._down_because: str | None = "not connected yet"
        self._tasks: set[asyncio.Task[None]] = set()
        self._publishes: dict[str, _Pending] = {}
        self._requests: dict[str, _Request] = {}
        self._timeouts = RequestTimeouts(settings.nats_request_timeout_sec, self._time_out)
        self._silence = WriteSilence(settings.nats_request_timeout_sec)
        self._tokens = itertools.count()
        self._reply_prefix = ""
        self._answers_prefix = ""
        self._failures = RateLimitedLog()
        self._fullness = StorageFull()
        self.reconnects = 0

    def after_connect(self, hook: Hook) -> None:
        self._hooks.append(hook)

    @property
    def client(self) -> Client:
        return self._client

    @property
    def jetstream(self) -> JetStreamContext:
        return HeartbeatJetStream(self._client, timeout=self._settings.nats_request_timeout_sec)

    @property
    def down_because(self) -> str | None:
        """Why the link is not ready, in a few words; None when it is."""
        if self._client.is_connected and self._prepared.is_set():
            return None
        return self._down_because or "preparing streams and buckets"

    async def waiting_for(self) -> dict[str, str]:
        """The readiness of a service that needs NATS only."""
        return {} if (reason := self.down_because) is None else {"nats": reason}

    @property
    def full_because(self) -> str | None:
        """Why writes are refused although the link is ready: NATS has no disk space. None if they are not."""
        return "no space is left on the disk of NATS" if self._fullness.is_told else None

    @property
    def max_payload(self) -> int:
        return self._client.max_payload

    def require(self) -> None:
        """Raise NatsUnavailable at once, without waiting for a timeout, when the link is known to be down."""
        if (reason := self.down_because) is not None:
            raise NatsUnavailable(f"NATS is unavailable ({reason}); try again when it is back", reason=reason)

    async def wait_ready(self) -> None:
        await self._prepared.wait()

    async def __aenter__(self) -> "NatsLink":
        self._spawn(self._connect())
        # Let the task start: a client whose connect was never called cannot be closed.
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = set(self._tasks)
        while tasks:
            # More than once: on Python 3.11 the library's `wait_for` can swallow a cancel, and connecting never ends.
            for task in tasks:
                task.cancel()
            tasks = (await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_SECONDS))[1]
        self._fail_pending("the process is stopping")
        self._timeouts.close()
        if self._client.is_connected:
            try:
                async with asyncio.timeout(2):
                    await self._client.flush()
            except OUTAGES:
                logger.debug("could not flush before closing", exc_info=True)
        await self._client.close()

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> Ack:
        """Publish to JetStream and wait for its ack."""
        return await self.wait_ack(await self.publish_nowait(subject, payload, headers))

    async def publish_nowait(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None
    ) -> asyncio.Future[Ack]:
        """Publish without waiting for the ack, so that many can be in flight. Await the future through `wait_ack`.

        The headers of the message carry the current trace context.
        """
        if (trace := current()) is not None:
            headers = {**(headers or {}), **trace.headers}
        token = str(next(self._tokens))
        future: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._publishes[token] = _Pending(subject, future)
        try:
            await self._client.publish(subject, payload, reply=self._reply_prefix + token, headers=headers)
        except OUTAGES as error:
            del self._publishes[token]
            raise self.unavailable(error) from error
        self._timeouts.watch(token, future)
        return future

    async def wait_ack(self, future: asyncio.Future[Ack]) -> Ack:
        """JetStream's ack; NatsSilent if it did not come in time."""
        return await future

    def _time_out(self, token: str, since: float) -> None:
        """Fail a publish or a request that has reached the request timeout."""
        if (publish := self._publishes.pop(token, None)) is not None:
            if not publish.future.done():
                self._note_silence(since=since)
            publish.fail(NatsSilent())
        elif (request := self._requests.get(token)) is not None:
            request.fail(TimeoutError())

    async def send(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None, *, reply: str = ""
    ) -> None:
        """Publish without waiting for anything."""
        try:
            await self._client.publish(subject, payload, reply=reply, headers=headers)
        except OUTAGES as error:
            raise self.unavailable(error) from error

    async def request(self, subject: str, payload: bytes = b"") -> Msg:
        try:
            [answer] = await self._ask(subject, payload, is_last=lambda _: True, outlives_connection=True)
            if (answer.headers or {}).get("Status") == "503":
                raise nats.errors.NoRespondersError
        except OUTAGES as error:
            raise self.unavailable(error) from error
        return answer

    async def request_api(self, what: str, payload: bytes = b"") -> Msg:
        """Call JetStream's API under the prefix that it has for our user; the first prefix that answers is kept.

        A server that reloads its users has no imports for a few milliseconds, and then not even the right prefix is
        answered. So a prefix is retried before the next one, which our user may not be permitted to use.
        """
        while len(self._api_prefixes) > 1:
            likeliest, *others = self._api_prefixes
            for pause_seconds in _API_NAME_PAUSES_SECONDS:
                try:
                    answer = await self.request(f"{likeliest}.{what}", payload)
                except NatsUnavailable as error:
                    if not isinstance(error.__cause__, nats.errors.NoRespondersError):
                        raise
                    await asyncio.sleep(pause_seconds)
                else:
                    self._api_prefixes = [likeliest]
                    return answer
            self._api_prefixes = others
        return await self.request(f"{self._api_prefixes[0]}.{what}", payload)

    async def request_many(self, subject: str, payload: bytes, *, is_last: Callable[[Msg], bool]) -> list[Msg]:
        """Send a request and collect its answers up to the one that `is_last`; all must arrive within the timeout."""
        try:
            return await self._ask(subject, payload, is_last=is_last, outlives_connection=False)
        except TimeoutError as error:
            raise NatsSilent() from error
        except OUTAGES as error:
            raise self.unavailable(error) from error

    async def _ask(
        self, subject: str, payload: bytes, *, is_last: Callable[[Msg], bool], outlives_connection: bool
    ) -> list[Msg]:
        token = str(next(self._tokens))
        request = _Request(subject, asyncio.get_running_loop().create_future(), is_last, outlives_connection)
        self._requests[token] = request
        try:
            await self._client.publish(subject, payload, reply=self._answers_prefix + token)
            self._timeouts.watch(token, request.future)
            await request.future
        finally:
            del self._requests[token]
        return request.answers

    async def stream_info(self, stream: str) -> api.StreamInfo:
        try:
            return await self.jetstream.stream_info(stream)
        except OUTAGES as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: BaseException) -> NatsUnavailable:
        """Translate what the library raised into our own failure."""
        reason = self.down_because or str(error) or type(error).__name__
        return NatsUnavailable(f"NATS is unavailable ({reason}); try again when it is back", reason=reason)

    async def _connect(self) -> None:
        settings = self._settings
        user: dict[str, Any] = {}
        if (nkey := settings.nats_nkey) is not None:
            user = {
                "nkeys_seed_str": nkey.seed.get_secret_value(),
                "inbox_prefix": inbox_prefix(nkey.public_key),
            }
        # Shuffled, so that the processes spread over the servers.
        servers = [url.strip() for url in settings.nats_url.split(",")]
        random.shuffle(servers)
        # With max_reconnect_attempts=-1 the first connect, too, is retried until it succeeds.
        await self._client.connect(
            servers=servers,
            dont_randomize=True,
            name=self._name,
            connect_timeout=settings.nats_connect_timeout_sec,  # type: ignore[arg-type]
            reconnect_time_wait=0.25,  # type: ignore[arg-type]
            max_reconnect_attempts=-1,
            ping_interval=_PING_SECONDS,
            max_outstanding_pings=2,
            # No buffering while disconnected: a write that was answered with 503 must not arrive later.
            pending_size=0,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
            tls=settings.nats_tls_context(),
            tls_hostname=settings.nats_tls_hostname,
            **user,
        )
        self._reply_prefix = await self._receive(self._on_ack)
        # A subscription apart from the acks: many large answers at once must not push out the ack of a write.
        self._answers_prefix = await self._receive(self._on_answer)
        self._down_because = None
        logger.info("connected to NATS", extra={"meta": {"server": self._server()}})
        self._spawn(self._prepare())

    async def _receive(self, on_message: Callable[[Msg], Awaitable[None]]) -> str:
        """Subscribe to a new inbox. Returns the prefix of its reply subjects; a token completes one."""
        inbox = self._client.new_inbox()
        await self._client.subscribe(f"{inbox}.*", cb=on_message)
        return f"{inbox}."

    async def _prepare(self) -> None:
        """Run the hooks until all succeed; a newer connection starts its own round."""
        round_ = self.reconnects
        delay = 0.05
        begun = time.monotonic()
        while self._client.is_connected and round_ == self.reconnects:
            try:
                for hook in self._hooks:
                    await hook()
            except Exception as error:
                self._down_because = f"preparing: {error or type(error).__name__}"
                level = self._failures.level(self._down_because)
                is_news = level > logging.DEBUG
                logger.log(level, "could not prepare NATS resources, trying again", exc_info=is_news)
                if time.monotonic() - begun > self._settings.nats_request_timeout_sec:
                    await self._move_on(self._down_because)
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)
                continue
            self._down_because = None
            self._prepared.set()
            return

    def _note_silence(self, *, since: float) -> None:
        if self._silence.note(since=since, now=asyncio.get_running_loop().time()):
            self._spawn(self._move_on("JetStream takes nothing at this server"))

    async def _move_on(self, reason: str) -> None:
        if self._client.is_connected and len(self._client.servers) > 1:
            logger.warning("trying another NATS server: %s", reason, extra={"meta": {"server": self._server()}})
            self._down_because = reason
            await self._client.leave_server(reason)

    async def _on_ack(self, msg: Msg) -> None:
        publish = self._publishes.pop(msg.subject[len(self._reply_prefix) :], None)
        if publish is None or publish.future.done():
            return
        if msg.headers and msg.headers.get("Status") == "503":
            self._note_silence(since=asyncio.get_running_loop().time())
            publish.future.set_exception(NatsUnavailable("NATS is unavailable (no stream takes this subject)"))
            return
        self._silence.end()
        answer: dict[str, Any] = orjson.loads(msg.data)
        error = answer.get("error")
        self._fullness.note(is_full=error is not None and NoSpaceLeft.is_meant_by(error))
        if error is not None:
            publish.future.set_exception(_refusal(error))
        else:
            publish.future.set_result(Ack(answer["stream"], answer["seq"], answer.get("duplicate", False)))

    async def _on_answer(self, msg: Msg) -> None:
        request = self._requests.get(msg.subject[len(self._answers_prefix) :])
        if request is None or request.future.done():
            return
        request.answers.append(msg)
        if request.is_last(msg):
            request.future.set_result(None)

    async def _on_error(self, error: Exception) -> None:
        if (subject := denied_subject(error)) is not None:
            self._deny(subject)
        self._note_outage(error)
        text = explained(error)
        logger.log(
            self._failures.level(text),
            "NATS reported an error: %s",
            text,
            exc_info=error,
            extra=problem_fields(Problem.NATS_UNAVAILABLE),
        )

    async def _on_disconnected(self) -> None:
        self._prepared.clear()
        if not self._client.is_closed:
            self._down_because = self._down_because or "connection lost"
            logger.warning("disconnected from NATS", extra=problem_fields(Problem.NATS_UNAVAILABLE))
        self._fail_pending(self._down_because or "connection closed", on_disconnect=True)

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        self._down_because = None
        self._silence.end()
        logger.info("reconnected to NATS", extra={"meta": {"server": self._server()}})
        self._spawn(self._prepare())

    async def _on_closed(self) -> None:
        self._prepared.clear()
        self._down_because = "connection closed"
        self._fail_pending("connection closed")

    def _note_outage(self, error: Exception) -> None:
        if not self._client.is_connected:
            self._down_because = explained(error)

    def _deny(self, denied: str) -> None:
        """Fail all pending messages to a denied subject, because the server does not name one; some may be stored."""
        self._client.deny(denied)
        for publish in self._publishes.values():
            if publish.subject.lower() == denied:
                publish.fail(WriteDenied(f"NATS refused the write: {NotPermitted(publish.subject)}"))
        for request in self._requests.values():
            if request.subject.lower() == denied:
                request.fail(NotPermitted(request.subject))

    def _fail_pending(self, reason: str, *, on_disconnect: bool = False) -> None:
        requests = (r for r in self._requests.values() if not (on_disconnect and r.outlives_connection))
        for pending in (*self._publishes.values(), *requests):
            pending.fail(NatsUnavailable(f"NATS is unavailable ({reason}); try again when it is back"))

    def _server(self) -> str:
        url = self._client.connected_url
        return url.netloc.rpartition("@")[2] if url else ""

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._down_because = str(error) or type(error).__name__
            logger.error("a task of the NATS link failed", exc_info=error)


def _refusal(error: dict[str, Any]) -> Exception:
    if error.get("err_code") in _WRONG_LAST_SEQUENCE:
        return WrongRevision(error.get("description", ""))
    if NoSpaceLeft.is_meant_by(error):
        return NoSpaceLeft()
    return WriteRefused(f"JetStream refused the write: {error.get('description', 'no reason given')}")

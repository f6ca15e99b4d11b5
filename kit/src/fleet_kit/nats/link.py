"""The connection to NATS: reconnects for ever, reports why it is down, and has many publishes in flight."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import api

from fleet_contracts.nats_roles import inbox_prefix
from fleet_contracts.problems import Problem

from ..errors import NatsUnavailable
from ..logs.rate_limit import RateLimitedLog
from ..logs.setup import problem_fields
from ..settings import FleetSettings
from ..telemetry.tracing import current
from .client import HeartbeatJetStream, ReconnectingClient, denied_subject, explained
from .outages import OUTAGES
from .replies import Ack, NatsSilent, Replies, WriteDenied, WriteRefused, WrongRevision

__all__ = ["Ack", "NatsLink", "NatsSilent", "WriteDenied", "WriteRefused", "WrongRevision"]

logger = logging.getLogger(__name__)

_CANCEL_AGAIN_SECONDS = 0.25
# A server behind a broken network sends nothing: after three unanswered pings it counts as lost.
_PING_SECONDS = 2
# In total longer than a reload of the users (1.5 ms measured); costs time only where the likeliest name is wrong.
_API_NAME_PAUSES_SECONDS = (0.05, 0.15, 0.3)

Hook = Callable[[], Awaitable[object]]


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
        self.client = ReconnectingClient()
        self.jetstream = HeartbeatJetStream(self.client, timeout=settings.nats_request_timeout_sec)
        self._hooks: list[Hook] = []
        self._prepared = asyncio.Event()
        self._down_because: str | None = "not connected yet"
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies = Replies(
            self.client, timeout_seconds=settings.nats_request_timeout_sec, on_silence=self._leave_silent_server
        )
        self._failures = RateLimitedLog()
        self.reconnects = 0

    def after_connect(self, hook: Hook) -> None:
        self._hooks.append(hook)

    @property
    def down_because(self) -> str | None:
        """Why the link is not ready, in a few words; None when it is."""
        if self.client.is_connected and self._prepared.is_set():
            return None
        return self._down_because or "preparing streams and buckets"

    async def waiting_for(self) -> dict[str, str]:
        """The readiness of a service that needs NATS only."""
        return {} if (reason := self.down_because) is None else {"nats": reason}

    @property
    def full_because(self) -> str | None:
        """Why writes are refused although the link is ready: NATS has no disk space. None if they are not."""
        return "no space is left on the disk of NATS" if self._replies.is_storage_full else None

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
        self._replies.close()
        if self.client.is_connected:
            try:
                async with asyncio.timeout(2):
                    await self.client.flush()
            except OUTAGES:
                logger.debug("could not flush before closing", exc_info=True)
        await self.client.close()

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> Ack:
        """Publish to JetStream and wait for its ack."""
        return await (await self.publish_nowait(subject, payload, headers))

    async def publish_nowait(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None
    ) -> asyncio.Future[Ack]:
        """Publish without waiting for the ack, so that many can be in flight.

        The future is JetStream's ack; NatsSilent if it did not come in time.

        The headers of the message carry the current trace context.
        """
        if (trace := current()) is not None:
            headers = {**(headers or {}), **trace.headers}
        try:
            return await self._replies.publish(subject, payload, headers)
        except OUTAGES as error:
            raise self.unavailable(error) from error

    async def send(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None, *, reply: str = ""
    ) -> None:
        """Publish without waiting for anything."""
        try:
            await self.client.publish(subject, payload, reply=reply, headers=headers)
        except OUTAGES as error:
            raise self.unavailable(error) from error

    async def request(self, subject: str, payload: bytes = b"") -> Msg:
        try:
            [answer] = await self._replies.ask(subject, payload, is_last=lambda _: True, outlives_connection=True)
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
            return await self._replies.ask(subject, payload, is_last=is_last, outlives_connection=False)
        except TimeoutError as error:
            raise NatsSilent() from error
        except OUTAGES as error:
            raise self.unavailable(error) from error

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
        await self.client.connect(
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
        await self._replies.listen()
        self._down_because = None
        logger.info("connected to NATS", extra={"meta": {"server": self._server()}})
        self._spawn(self._prepare())

    async def _prepare(self) -> None:
        """Run the hooks until all succeed; a newer connection starts its own round."""
        round_ = self.reconnects
        delay = 0.05
        begun = time.monotonic()
        while self.client.is_connected and round_ == self.reconnects:
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

    def _leave_silent_server(self) -> None:
        self._spawn(self._move_on("JetStream takes nothing at this server"))

    async def _move_on(self, reason: str) -> None:
        if self.client.is_connected and len(self.client.servers) > 1:
            logger.warning("trying another NATS server: %s", reason, extra={"meta": {"server": self._server()}})
            self._down_because = reason
            await self.client.leave_server(reason)

    async def _on_error(self, error: Exception) -> None:
        if (subject := denied_subject(error)) is not None:
            self.deny(subject)
        text = explained(error)
        if not self.client.is_connected:
            self._down_because = text
        logger.log(
            self._failures.level(text),
            "NATS reported an error: %s",
            text,
            exc_info=error,
            extra=problem_fields(Problem.NATS_UNAVAILABLE),
        )

    async def _on_disconnected(self) -> None:
        self._prepared.clear()
        if not self.client.is_closed:
            self._down_because = self._down_because or "connection lost"
            logger.warning("disconnected from NATS", extra=problem_fields(Problem.NATS_UNAVAILABLE))
        self._replies.fail(self._down_because or "connection closed", on_disconnect=True)

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        self._down_because = None
        logger.info("reconnected to NATS", extra={"meta": {"server": self._server()}})
        self._spawn(self._prepare())

    async def _on_closed(self) -> None:
        self._prepared.clear()
        self._down_because = "connection closed"
        self._replies.fail("connection closed")

    def deny(self, subject: str) -> None:
        """Fail all that waits for an answer to this subject, given in lower case: the server has denied it."""
        self.client.deny(subject)
        self._replies.deny(subject)

    def _server(self) -> str:
        url = self.client.connected_url
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

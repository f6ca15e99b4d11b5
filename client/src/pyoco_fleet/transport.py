"""The only module that knows the HTTP library: sends requests, repeats what may be repeated, reads event streams."""

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeAlias, TypeVar

import httpx2
import tenacity

from .calls import Answer, Call, error_of
from .config import InvalidConfiguration, Server
from .errors import BadAnswer, FleetError, Unavailable, Unreachable
from .sse import Event, Resumption

T = TypeVar("T")
# Makes another exception of an error: error, method, URL, and the answer or the name of what broke.
Adapt: TypeAlias = Callable[[FleetError, str, str, Answer | str], FleetError]

# A stream says at least a heartbeat every 10 s.
_SILENCE_SECONDS = 35.0
# A watch of many runs may begin with a list of them in one event.
_EVENT_BYTES = 64 * 1024 * 1024
# As many as wait at once; a group of runs is one. The others queue.
_STREAMS = httpx2.Limits(max_connections=500, max_keepalive_connections=20)
# For a server that has never answered.
_ATTEMPTS_TO_MEET = 3
_SECONDS_TO_MEET = 1.0


@dataclass(frozen=True)
class Retries:
    """How often a request that may be repeated is sent: the waits double, with jitter, and respect Retry-After."""

    attempts: int = 8
    # No attempt begins later than this after the first.
    seconds: float = 60.0
    first_wait_seconds: float = 0.2
    longest_wait_seconds: float = 8.0

    def wait(self, failures: int, error: BaseException | None) -> float:
        doubled = min(self.first_wait_seconds * 2.0 ** min(failures - 1, 30), self.longest_wait_seconds)
        asked_for = (error.retry_after if isinstance(error, FleetError) else None) or 0.0
        return max(asked_for, doubled) + random.uniform(0, doubled)  # noqa: S311

    def repeats(self, call: Call[Any], error: BaseException | None) -> bool:
        if isinstance(error, Unreachable):
            return call.may_repeat or not error.sent
        if isinstance(error, Unavailable):
            return call.may_repeat and (error.retry_after or 0.0) <= self.seconds
        return False


class _Common:
    """What both transports know: addresses, headers, and what an answer or a failure means."""

    def __init__(
        self, server: Server, *, timeout: float = 30.0, retries: Retries | None = None, adapt: Adapt | None = None
    ) -> None:
        try:
            host = httpx2.URL(server.url).host
        except httpx2.InvalidURL as error:
            raise InvalidConfiguration(f"{server.url!r} is no address of a fleet: {error}") from error
        self.server = server
        # Certificates cost 20 ms to load, and an http address has none.
        self._verify = httpx2.create_ssl_context() if self.server.url.startswith("https:") else False
        self._host = host
        self._adapt = adapt
        self.retries = retries or Retries()
        self._seconds = timeout
        # Whether this server has ever answered: an address where nobody lives is soon given up.
        self._met = False

    def _options(self) -> dict[str, Any]:
        return {
            "base_url": self.server.url,
            "headers": {"User-Agent": "pyoco-fleet-client", **self.server.headers},
            "timeout": self._timeout(self._seconds),
            "verify": self._verify,
            # A proxy of the environment cannot reach this machine's own fleet, and would get its key.
            "mounts": {f"all://[{self._host}]" if ":" in self._host else f"all://{self._host}": None}
            if _is_loopback(self._host)
            else None,
        }

    def _timeout(self, read_seconds: float) -> httpx2.Timeout:
        return httpx2.Timeout(self._seconds, connect=min(self._seconds, 5.0), read=read_seconds, pool=None)

    def _loop(self, call: Call[Any]) -> dict[str, Any]:
        """The arguments of tenacity's loops."""
        retries = self.retries

        def repeats(state: tenacity.RetryCallState) -> bool:
            error = _error_of(state)
            given_up = False
            if isinstance(error, Unreachable) and not self._met:
                # It refuses connections, or takes them and says nothing.
                silent = error.sent and (state.seconds_since_start or 0.0) >= self._seconds
                given_up = silent or (not error.sent and state.attempt_number >= _ATTEMPTS_TO_MEET)
            return retries.repeats(call, error) and not given_up

        return {
            "stop": tenacity.stop_after_attempt(retries.attempts) | tenacity.stop_before_delay(retries.seconds),
            "wait": lambda state: retries.wait(state.attempt_number, _error_of(state)),
            "retry": repeats,
            "reraise": True,
        }

    def _goes_on(self, resumption: Resumption, error: FleetError) -> bool:
        patience = self.retries.seconds if self._met else min(self.retries.seconds, _SECONDS_TO_MEET)
        return resumption.goes_on_after(error, give_up_after_seconds=patience if self.retries.attempts > 1 else 0.0)

    def _pause(self, resumption: Resumption, error: FleetError) -> float:
        return min(self.retries.wait(resumption.failures, error), resumption.seconds_left)

    def _stream_arguments(self, call: Call[Any], resumption: Resumption) -> dict[str, Any]:
        arguments = self._arguments(call)
        arguments["headers"].update(resumption.headers)
        left = resumption.seconds_left
        timeout = self._timeout(min(_SILENCE_SECONDS, left + 0.01))
        timeout.pool = None if math.isinf(left) else left
        return arguments | {"timeout": timeout}

    @staticmethod
    def _arguments(call: Call[Any]) -> dict[str, Any]:
        arguments = {
            "params": call.params,
            "json": call.json,
            "data": call.form,
            "files": call.files,
            "headers": dict(call.headers),
        }
        return {"method": call.method, "url": call.path} | {
            name: value for name, value in arguments.items() if value is not None
        }

    def _answer(self, call: Call[Any], response: httpx2.Response) -> Answer:
        self._met = True
        asked = f"{call.method} {response.request.url}"
        answer = Answer(response.status_code, response.headers, response.content, asked)
        if response.status_code >= 300:
            raise self._adapted(error_of(answer), call, answer)
        return answer

    def _adapted(self, error: FleetError, call: Call[Any], came: Answer | str) -> FleetError:
        if (key := call.headers.get("Idempotency-Key")) is not None:
            # With it a caller that does not know whether the run was accepted can ask again.
            error.meta["idempotency_key"] = key
        return self._adapt(error, call.method, self.server.url + call.path, came) if self._adapt else error

    def _failed(self, call: Call[Any], error: Exception) -> FleetError:
        if isinstance(error, httpx2.SSEError | httpx2.DecodingError):
            return BadAnswer(
                f"the answer to {call.method} {self.server.url}{call.path} cannot be read: {error}; is this the "
                "address of a fleet?",
                code="BAD_ANSWER",
            )
        return self._adapted(self._lost(call, error), call, type(error).__name__)

    def _lost(self, call: Call[Any], error: Exception) -> Unreachable:
        url = self.server.url
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return Unreachable(
                f"nothing answers at {url} ({error}); start a fleet with ./fleet up, or give the address of yours "
                "(PYOCO_SERVER)",
                sent=False,
            )
        if isinstance(error, httpx2.TimeoutException):
            return Unreachable(f"{url} has not answered {call.method} {call.path} in time; look at its health")
        return Unreachable(f"the connection to {url} was lost during {call.method} {call.path} ({error})")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _error_of(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


class Transport(_Common):
    """Blocking; threads may share it."""

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._client = httpx2.Client(**self._options())
        # Streams last: those who wait for many runs must not keep a cancel from being sent.
        self._streams = httpx2.Client(**self._options(), limits=_STREAMS)

    def close(self) -> None:
        self._client.close()
        self._streams.close()

    def send(self, call: Call[T]) -> T:
        for attempt in tenacity.Retrying(**self._loop(call)):
            with attempt, self._failures(call):
                answer = self._answer(call, self._client.request(**self._arguments(call)))
        return call.read(answer)

    def events(
        self, call: Call[Any], last_event_id: str | None = None, deadline: float | None = None
    ) -> Generator[Event, None, None]:
        """The events of a stream until the server ends it; a lost connection is taken up where it was."""
        resumption = Resumption(last_event_id, deadline)
        while True:
            try:
                with self._opened(call, resumption) as response:
                    for sent in httpx2.EventSource(response, _EVENT_BYTES):
                        event = Event.parse(sent.id, sent.event, sent.data)
                        resumption.saw(event)
                        yield event
                return
            except FleetError as error:
                if not self._goes_on(resumption, error):
                    return
                time.sleep(self._pause(resumption, error))

    def chunks(self, call: Call[Any]) -> Iterator[bytes]:
        """A large body piece by piece."""
        with self._opened(call, Resumption(None, None)) as response:
            yield from response.iter_bytes()

    @contextmanager
    def _opened(self, call: Call[Any], resumption: Resumption) -> Iterator[httpx2.Response]:
        arguments = self._stream_arguments(call, resumption)
        with self._failures(call), self._streams.stream(**arguments) as response:
            if response.status_code >= 300:
                response.read()
                self._answer(call, response)
            self._met = True
            yield response

    @contextmanager
    def _failures(self, call: Call[Any]) -> Iterator[None]:
        try:
            yield
        except httpx2.RequestError as error:
            raise self._failed(call, error) from error


class AsyncTransport(_Common):
    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._client = httpx2.AsyncClient(**self._options())
        self._streams = httpx2.AsyncClient(**self._options(), limits=_STREAMS)

    async def close(self) -> None:
        await self._client.aclose()
        await self._streams.aclose()

    async def send(self, call: Call[T]) -> T:
        async for attempt in tenacity.AsyncRetrying(**self._loop(call)):
            with attempt:
                async with self._failures(call):
                    answer = self._answer(call, await self._client.request(**self._arguments(call)))
        return call.read(answer)

    async def events(
        self, call: Call[Any], last_event_id: str | None = None, deadline: float | None = None
    ) -> AsyncGenerator[Event, None]:
        resumption = Resumption(last_event_id, deadline)
        while True:
            try:
                async with self._opened(call, resumption) as response:
                    async for sent in httpx2.EventSource(response, _EVENT_BYTES):
                        event = Event.parse(sent.id, sent.event, sent.data)
                        resumption.saw(event)
                        yield event
                return
            except FleetError as error:
                if not self._goes_on(resumption, error):
                    return
                await asyncio.sleep(self._pause(resumption, error))

    async def chunks(self, call: Call[Any]) -> AsyncIterator[bytes]:
        async with self._opened(call, Resumption(None, None)) as response:
            async for chunk in response.aiter_bytes():
                yield chunk

    @asynccontextmanager
    async def _opened(self, call: Call[Any], resumption: Resumption) -> AsyncIterator[httpx2.Response]:
        arguments = self._stream_arguments(call, resumption)
        async with self._failures(call), self._streams.stream(**arguments) as response:
            if response.status_code >= 300:
                await response.aread()
                self._answer(call, response)
            self._met = True
            yield response

    @asynccontextmanager
    async def _failures(self, call: Call[Any]) -> AsyncIterator[None]:
        try:
            yield
        except httpx2.RequestError as error:
            raise self._failed(call, error) from error

"""PyocoHttpClient and AsyncPyocoHttpClient: a method for each route, dicts in and out."""

import asyncio
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from typing import Any, Self, TypeVar

from .callers import AsynchronousClient, BlockingClient, Method
from .calls import Call, as_json_or_text, given
from .config import DEFAULT_KEY_HEADER, Server
from .errors import WaitTimeout
from .peer_errors import as_scripts_expect
from .routes import administration, dead_letters, runs, wheels, workers
from .sse import Event
from .transport import Adapt, AsyncTransport, Retries, Transport

T = TypeVar("T")
Json = dict[str, Any]

_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
_CANCEL_WAIT_SECONDS = 30
_POLL_SECONDS = 0.25


class Routes(ABC):
    """The methods that are one request each."""

    @abstractmethod
    def __init__(self, base_url: str, *, api_key: str | None, api_key_header: str, **options: Any) -> None: ...

    @classmethod
    def of(cls, server: Server, **options: Any) -> Self:
        header = server.api_key_header
        return cls(server.address, api_key=server.api_key, api_key_header=header, adapt=None, **options)

    submit_run = Method(runs.submit_run)
    submit_runs = Method(runs.submit_runs)
    submit_run_yaml = Method(runs.submit_run_yaml)
    rerun_run = Method(runs.rerun_run)
    get_run = Method(runs.get_run)
    get_run_with_records = Method(runs.get_run_with_records)
    get_tasks = Method(runs.get_tasks)
    get_result = Method(runs.get_result)
    get_attempts = Method(runs.get_attempts)
    get_results = Method(runs.get_results)
    get_events = Method(runs.get_events)
    get_logs = Method(runs.get_logs)
    list_runs = Method(runs.list_runs)
    list_runs_vnext = Method(runs.list_runs_vnext)

    list_dead_letters = Method(dead_letters.list_dead_letters)
    list_dead_letter_groups = Method(dead_letters.list_dead_letter_groups)
    get_dead_letter = Method(dead_letters.get_dead_letter)
    requeue_dead_letter = Method(dead_letters.requeue_dead_letter)
    requeue_dead_letters = Method(dead_letters.requeue_dead_letters)
    delete_dead_letter = Method(dead_letters.delete_dead_letter)
    delete_dead_letters = Method(dead_letters.delete_dead_letters)

    list_flows = Method(workers.list_flows)
    get_flow = Method(workers.get_flow)
    get_workers = Method(workers.get_workers)
    get_worker = Method(workers.get_worker)
    patch_worker_hidden = Method(workers.patch_worker_hidden)
    drain_worker = Method(workers.drain_worker)
    resume_worker = Method(workers.resume_worker)

    list_wheels = Method(wheels.list_wheels)
    list_wheel_history = Method(wheels.list_wheel_history)
    list_wheel_history_page = Method(wheels.list_wheel_history_page)
    upload_wheel = Method(wheels.upload_wheel)
    download_wheel = Method(wheels.download_wheel)
    delete_wheel = Method(wheels.delete_wheel)

    list_keys = Method(administration.list_keys)
    issue_key = Method(administration.issue_key)
    get_key = Method(administration.get_key)
    revoke_key = Method(administration.revoke_key)
    get_health = Method(administration.get_health)
    get_metrics = Method(administration.get_metrics)


def _any_call(
    method: str, path: str, params: Mapping[str, Any] | None, json: Any, headers: Mapping[str, str] | None
) -> Call[Any]:
    # The path is one, not a pattern: braces in it mean themselves.
    route = path.replace("{", "%7B").replace("}", "%7D")
    return Call(
        method.upper(), route, as_json_or_text, params=given(**params or {}), json=json, headers=dict(headers or {})
    )


def _peer_event(event: Event) -> Json:
    return {"event": event.event, "data": event.data}


class PyocoHttpClient(Routes, BlockingClient):
    """Blocking. Threads may share one; `close` it, or use it in a `with` statement."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        api_key_header: str = DEFAULT_KEY_HEADER,
        timeout: float = 30.0,
        retries: Retries | None = None,
        adapt: Adapt | None = as_scripts_expect,
    ) -> None:
        self.server = Server(base_url, api_key, api_key_header)
        self._transport = Transport(self.server, timeout=timeout, retries=retries, adapt=adapt)

    def close(self) -> None:
        self._transport.close()

    def call(self, call: Call[T]) -> T:
        return self._transport.send(call)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Any request: its answer parsed if it is JSON, else as text."""
        return self.call(_any_call(method, path, params, json, headers))

    def events(
        self, path: str, *, params: Mapping[str, Any] | None = None, last_event_id: str | None = None
    ) -> Generator[Event, None, None]:
        """The server-sent events of any address, taken up again after a lost connection."""
        return self.stream(_any_call("GET", path, params, None, None), last_event_id)

    def stream(
        self, call: Call[Any], last_event_id: str | None = None, *, deadline: float | None = None
    ) -> Generator[Event, None, None]:
        """The events of a route; with a `deadline` of time.monotonic() it ends then."""
        return self._transport.events(call, last_event_id, deadline)

    def chunks(self, call: Call[Any]) -> Iterator[bytes]:
        """A large answer piece by piece."""
        return self._transport.chunks(call)

    @functools.wraps(runs.watch_run)
    def watch_run(self, *args: Any, **options: Any) -> Iterator[Json]:
        return map(_peer_event, self.stream(runs.watch_run(*args, **options)))

    @functools.wraps(runs.watch_runs)
    def watch_runs(self, *args: Any, **options: Any) -> Iterator[Json]:
        return map(_peer_event, self.stream(runs.watch_runs(*args, **options)))

    @functools.wraps(runs.watch_tags)
    def watch_tags(self, *args: Any, **options: Any) -> Iterator[Json]:
        return map(_peer_event, self.stream(runs.watch_tags(*args, **options)))

    @functools.wraps(runs.follow_logs)
    def follow_logs(self, *args: Any, **options: Any) -> Iterator[Json]:
        return map(_peer_event, self.stream(runs.follow_logs(*args, **options)))

    @functools.wraps(workers.watch_workers)
    def watch_workers(self, **options: Any) -> Iterator[Json]:
        return map(_peer_event, self.stream(workers.watch_workers(**options)))

    @functools.wraps(workers.watch_flows)
    def watch_flows(self, **options: Any) -> Iterator[Json]:
        return map(_peer_event, self.stream(workers.watch_flows(**options)))

    def cancel_run(
        self, run_id: str, *, wait: bool = False, timeout_sec: float | None = None, reason: str | None = None
    ) -> Json:
        """Ask a run to end; with `wait` until it has ended, at most for `timeout_sec` (30)."""
        run = self.call(runs.cancel_run(run_id, reason=reason))
        deadline = time.monotonic() + _wait_seconds(timeout_sec)
        while wait and run["status"] not in _ENDED:
            if time.monotonic() >= deadline:
                raise _not_cancelled(run_id)
            time.sleep(_POLL_SECONDS)
            run = self.get_run(run_id)
        return run


class AsyncPyocoHttpClient(Routes, AsynchronousClient):
    """The same for asyncio: every method is a coroutine, every stream an asynchronous iterator."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        api_key_header: str = DEFAULT_KEY_HEADER,
        timeout: float = 30.0,
        retries: Retries | None = None,
        adapt: Adapt | None = as_scripts_expect,
    ) -> None:
        self.server = Server(base_url, api_key, api_key_header)
        self._transport = AsyncTransport(self.server, timeout=timeout, retries=retries, adapt=adapt)

    async def close(self) -> None:
        await self._transport.close()

    async def call(self, call: Call[T]) -> T:
        return await self._transport.send(call)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        return await self.call(_any_call(method, path, params, json, headers))

    def events(
        self, path: str, *, params: Mapping[str, Any] | None = None, last_event_id: str | None = None
    ) -> AsyncGenerator[Event, None]:
        return self.stream(_any_call("GET", path, params, None, None), last_event_id)

    def stream(
        self, call: Call[Any], last_event_id: str | None = None, *, deadline: float | None = None
    ) -> AsyncGenerator[Event, None]:
        return self._transport.events(call, last_event_id, deadline)

    def chunks(self, call: Call[Any]) -> AsyncIterator[bytes]:
        return self._transport.chunks(call)

    @functools.wraps(runs.watch_run)
    def watch_run(self, *args: Any, **options: Any) -> AsyncIterator[Json]:
        return self._peer_events(runs.watch_run(*args, **options))

    @functools.wraps(runs.watch_runs)
    def watch_runs(self, *args: Any, **options: Any) -> AsyncIterator[Json]:
        return self._peer_events(runs.watch_runs(*args, **options))

    @functools.wraps(runs.watch_tags)
    def watch_tags(self, *args: Any, **options: Any) -> AsyncIterator[Json]:
        return self._peer_events(runs.watch_tags(*args, **options))

    @functools.wraps(runs.follow_logs)
    def follow_logs(self, *args: Any, **options: Any) -> AsyncIterator[Json]:
        return self._peer_events(runs.follow_logs(*args, **options))

    @functools.wraps(workers.watch_workers)
    def watch_workers(self, **options: Any) -> AsyncIterator[Json]:
        return self._peer_events(workers.watch_workers(**options))

    @functools.wraps(workers.watch_flows)
    def watch_flows(self, **options: Any) -> AsyncIterator[Json]:
        return self._peer_events(workers.watch_flows(**options))

    async def cancel_run(
        self, run_id: str, *, wait: bool = False, timeout_sec: float | None = None, reason: str | None = None
    ) -> Json:
        run = await self.call(runs.cancel_run(run_id, reason=reason))
        deadline = time.monotonic() + _wait_seconds(timeout_sec)
        while wait and run["status"] not in _ENDED:
            if time.monotonic() >= deadline:
                raise _not_cancelled(run_id)
            await asyncio.sleep(_POLL_SECONDS)
            run = await self.get_run(run_id)
        return run

    async def _peer_events(self, call: Call[Any]) -> AsyncIterator[Json]:
        async for event in self.stream(call):
            yield _peer_event(event)


def _wait_seconds(timeout_sec: float | None) -> float:
    return max(1.0, _CANCEL_WAIT_SECONDS if timeout_sec is None else timeout_sec)


def _not_cancelled(run_id: str) -> WaitTimeout:
    return WaitTimeout(
        f"the run {run_id} has not ended yet; its cancel request stands", code="TIMEOUT", err_id="ERR-PYOCO-0021"
    )

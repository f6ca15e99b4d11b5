"""The same as fleet.py for asyncio."""

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

from . import recipes
from .async_runs import AsyncRun, AsyncRunGroup
from .callers import Asynchronous, AsynchronousClient, Method
from .calls import Call
from .config import server as find_server
from .fleet_base import (
    DeadLettersBase,
    FleetBase,
    Moment,
    Retry,
    Span,
    SubmitOptions,
    ids_of,
    many,
    one,
    wheel_path,
    workflow_text,
)
from .http_client import AsyncPyocoHttpClient
from .models import DeadLetter, RunState, Wheel, WheelEvent
from .routes import runs as run_routes
from .routes import wheels as wheel_routes
from .transport import Retries

T = TypeVar("T")


class AsyncFleet(FleetBase, AsynchronousClient):
    """Methods as those of Fleet, as coroutines and asynchronous iterators. Use it with `async with`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        api_key_header: str | None = None,
        profile: str | None = None,
        timeout: float = 30.0,
        retries: Retries | None = None,
    ) -> None:
        self.server = find_server(url, api_key=api_key, api_key_header=api_key_header, profile=profile)
        # A method for each route, for what is missing here.
        self.http = AsyncPyocoHttpClient.of(self.server, timeout=timeout, retries=retries)
        self.dead_letters = AsyncDeadLetters(self.http)
        self.wheels = AsyncWheels(self.http)

    async def close(self) -> None:
        await self.http.close()

    async def call(self, call: Call[T]) -> T:
        return await self.http.call(call)

    async def submit(
        self,
        flow: Any,
        params: Any = None,
        /,
        *,
        tag: str | None = None,
        tags: Sequence[str] | None = None,
        retry: Retry | None = None,
        not_before: Moment | None = None,
        delay_sec: Span | None = None,
        deadline_at: Moment | None = None,
        timeout_sec: Span | None = None,
        check_params: bool | None = None,
        idempotency_key: str | None = None,
        **more_params: Any,
    ) -> AsyncRun:
        options: SubmitOptions = {"tag": tag, "tags": tags, "retry": retry, "not_before": not_before}
        options |= {"delay_sec": delay_sec, "deadline_at": deadline_at, "timeout_sec": timeout_sec}
        options["check_params"] = check_params
        body = one(flow, params, more_params, options)
        answer = await self.call(run_routes.submit(body, idempotency_key=idempotency_key))
        return AsyncRun(self.http, answer["run_id"])

    async def map(
        self,
        flow: str | type,
        params: Iterable[Any],
        *,
        idempotency_key: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> AsyncRunGroup:
        submissions = many(flow, params, options)
        return AsyncRunGroup(self.http, await self.perform(recipes.submit_many(submissions, idempotency_key)))

    async def submit_yaml(
        self,
        workflow: str | Path,
        *,
        flow_name: str,
        idempotency_key: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> AsyncRun:
        answer = await self.http.submit_run_yaml(
            workflow_text(workflow),
            flow_name=flow_name,
            idempotency_key=idempotency_key,
            **options,
        )
        return AsyncRun(self.http, answer["run_id"])

    def run(self, run_id: str) -> AsyncRun:
        return AsyncRun(self.http, run_id)

    def group(self, runs: Iterable[AsyncRun | str]) -> AsyncRunGroup:
        return AsyncRunGroup(self.http, ids_of(runs))

    async def runs(self, *, limit: int | None = 100, **filters: Any) -> AsyncIterator[AsyncRun]:
        async for item in self.items(recipes.run_page(limit, **filters), limit):
            yield AsyncRun(self.http, item["run_id"], RunState.model_validate(item))

    async def metrics(self) -> str:
        return await self.http.get_metrics()


class AsyncDeadLetters(DeadLettersBase, Asynchronous):
    def __init__(self, http: AsyncPyocoHttpClient) -> None:
        self._http = http

    async def call(self, call: Call[T]) -> T:
        return await self._http.call(call)

    def __aiter__(self) -> AsyncIterator[DeadLetter]:
        return self.list(limit=None)

    async def list(self, *, limit: int | None = 100, **criteria: Any) -> AsyncIterator[DeadLetter]:
        async for letter in self.items(recipes.letter_page(limit, **criteria), limit):
            yield DeadLetter.model_validate(letter)

    async def get(self, letter_id: int) -> DeadLetter:
        return DeadLetter.model_validate(await self._http.get_dead_letter(letter_id))


class AsyncWheels(Asynchronous):
    list = Method(recipes.list_wheels)

    def __init__(self, http: AsyncPyocoHttpClient) -> None:
        self._http = http

    async def call(self, call: Call[T]) -> T:
        return await self._http.call(call)

    async def upload(self, file: str | Path, *, tags: Sequence[str] | None = None) -> Wheel:
        path = Path(file)
        with path.open("rb") as data:  # noqa: ASYNC230 - read piece by piece
            return Wheel.model_validate(await self._http.upload_wheel(filename=path.name, data=data, tags=tags))

    async def download(self, name: str, to: str | Path) -> Path:
        path = wheel_path(name, to)
        part = path.with_name(f"{path.name}.part")
        with part.open("wb") as file:
            async for chunk in self._http.chunks(wheel_routes.download_wheel(name)):
                file.write(chunk)
        return part.replace(path)

    async def delete(self, name: str) -> None:
        await self._http.delete_wheel(name)

    async def history(self, *, limit: int | None = 100, **filters: Any) -> AsyncIterator[WheelEvent]:
        async for event in self.items(recipes.history_page(limit, **filters), limit):
            yield WheelEvent.model_validate(event)

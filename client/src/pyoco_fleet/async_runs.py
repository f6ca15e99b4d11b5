"""The same as runs.py for asyncio."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Self, TypeVar, overload

from . import recipes
from .callers import Asynchronous, Json
from .calls import Call
from .errors import NotFound, RunEnded
from .http_client import AsyncPyocoHttpClient
from .models import LogLine, RunState
from .outstanding import Outstanding
from .progress import progress_of
from .routes import runs as routes
from .run_base import GroupBase, RunBase

T = TypeVar("T")


class AsyncRun(RunBase, Asynchronous):
    """Methods as those of Run, as coroutines; `state` is what was seen last, `refresh` looks again."""

    def __init__(
        self, http: AsyncPyocoHttpClient, run_id: str, state: RunState | None = None, end: Json | None = None
    ) -> None:
        super().__init__(run_id, state, end)
        self._http = http

    async def call(self, call: Call[T]) -> T:
        return await self._http.call(call)

    async def refresh(self) -> Self:
        self.state = await self.perform(recipes.state(self.id))
        # It may have been requeued since it ended.
        self._end = self._end if self._ended else None
        return self

    async def wait(self, timeout: float | None = None) -> Self:
        if self._end is None:
            async for end in ends(self._http, [self.id], timeout):
                self._remember(end)
        return self

    async def result(self, timeout: float | None = None) -> Any:
        await self.wait(timeout)
        assert self._end is not None
        return await self.perform(recipes.result(self.id, self._end))

    async def watch(self) -> AsyncGenerator[RunState, None]:
        last_event_id = None
        while not self._ended:
            call = routes.watch_run(self.id, include_records=True)
            async with aclosing(self._http.stream(call, last_event_id)) as events:
                async for event in events:
                    if event.event == "snapshot":
                        last_event_id = event.id or last_event_id
                        self.state = RunState.model_validate(event.data["snapshot"])
                        yield self.state

    async def follow(self, *, task: str | None = None, stream: str | None = None) -> AsyncGenerator[LogLine, None]:
        last_event_id = None
        while True:
            call = routes.follow_logs(self.id, task=task, stream=stream)
            async with aclosing(self._http.stream(call, last_event_id)) as events:
                async for event in events:
                    last_event_id = event.id or last_event_id
                    if event.event == "log":
                        yield LogLine.model_validate(event.data)
                    elif event.event == "end":
                        return

    async def cancel(self, reason: str | None = None, *, wait: bool = False, timeout: float | None = 60.0) -> Self:
        self.state = RunState.model_validate(await self._http.cancel_run(self.id, reason=reason))
        return await self.wait(timeout) if wait else self

    async def rerun(self) -> "AsyncRun":
        return AsyncRun(self._http, (await self._http.rerun_run(self.id))["run_id"])


class AsyncRunGroup(GroupBase):
    def __init__(self, http: AsyncPyocoHttpClient, run_ids: Iterable[str]) -> None:
        super().__init__(run_ids)
        self._http = http

    def __iter__(self) -> Iterator[AsyncRun]:
        return (AsyncRun(self._http, run_id) for run_id in self.ids)

    @overload
    def __getitem__(self, place: int) -> AsyncRun: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...

    def __getitem__(self, place: int | slice) -> AsyncRun | Self:
        if isinstance(place, slice):
            return type(self)(self._http, self.ids[place])
        return AsyncRun(self._http, self.ids[place])

    async def as_completed(
        self, timeout: float | None = None, *, progress: bool = False
    ) -> AsyncGenerator[AsyncRun, None]:
        with progress_of(len(self), progress) as ended:
            async with aclosing(ends(self._http, self.ids, timeout)) as told:
                async for end in told:
                    self._statuses[end["run_id"]] = end["status"]
                    ended(end["status"])
                    yield AsyncRun(self._http, end["run_id"], end=end)

    async def wait(self, timeout: float | None = None, *, progress: bool = False) -> Self:
        async for _ in self.as_completed(timeout, progress=progress):
            pass
        return self

    async def results(
        self, timeout: float | None = None, *, return_exceptions: bool = False, progress: bool = False
    ) -> list[Any]:
        found: dict[str, Any] = {}
        async with aclosing(self.as_completed(timeout, progress=progress)) as runs:
            async for run in runs:
                try:
                    found[run.id] = await run.result()
                except (RunEnded, NotFound) as error:
                    if not return_exceptions:
                        raise
                    found[run.id] = error
        return [found[run_id] for run_id in self.ids]

    async def cancel(self, reason: str | None = None) -> Self:
        for run_id in self.ids:
            if run_id not in self._statuses:
                await self._http.cancel_run(run_id, reason=reason)
        return self


async def ends(
    http: AsyncPyocoHttpClient, run_ids: Sequence[str], timeout: float | None
) -> AsyncGenerator[Json, None]:
    outstanding = Outstanding(run_ids, timeout)
    while outstanding:
        async with aclosing(http.stream(outstanding.watch(), deadline=outstanding.stream_deadline)) as events:
            async for event in events:
                for end in outstanding.ends(event):
                    yield end
                if outstanding.wants_next_stream:
                    break
        await asyncio.sleep(outstanding.pause_seconds())

"""A run and a group of runs, as one holds them in a script."""

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Self, TypeVar, overload

from . import recipes
from .callers import Blocking, Json
from .calls import Call
from .errors import NotFound, RunEnded
from .http_client import PyocoHttpClient
from .models import LogLine, RunState
from .outstanding import Outstanding
from .progress import progress_of
from .routes import runs as routes
from .run_base import GroupBase, RunBase

T = TypeVar("T")


class Run(RunBase, Blocking):
    def __init__(
        self, http: PyocoHttpClient, run_id: str, state: RunState | None = None, end: Json | None = None
    ) -> None:
        super().__init__(run_id, state, end)
        self._http = http

    def call(self, call: Call[T]) -> T:
        return self._http.call(call)

    @property
    def status(self) -> str:
        """The status now."""
        if not self._ended:
            self.state = RunState.model_validate(self._http.get_run(self.id))
        assert self.state is not None
        return self.state.status

    def refresh(self) -> Self:
        """Look at it again, with the records of its tasks."""
        self.state = self.perform(recipes.state(self.id))
        # It may have been requeued since it ended.
        self._end = self._end if self._ended else None
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Until it has ended, however that is. Raises WaitTimeout."""
        if self._end is None:
            for end in ends(self._http, [self.id], timeout):
                self._remember(end)
        return self

    def result(self, timeout: float | None = None) -> Any:
        """What the flow returned, as soon as it has. Raises FlowFailed, RunCancelled, WaitTimeout."""
        self.wait(timeout)
        assert self._end is not None
        return self.perform(recipes.result(self.id, self._end))

    def watch(self) -> Iterator[RunState]:
        """Its state whenever it changes, with the records of its tasks, until it has ended."""
        last_event_id = None
        while not self._ended:
            call = routes.watch_run(self.id, include_records=True)
            for event in self._http.stream(call, last_event_id):
                if event.event == "snapshot":
                    last_event_id = event.id or last_event_id
                    self.state = RunState.model_validate(event.data["snapshot"])
                    yield self.state

    def follow(self, *, task: str | None = None, stream: str | None = None) -> Iterator[LogLine]:
        """Its output while it works, from the beginning, until it has ended."""
        last_event_id = None
        while True:
            for event in self._http.stream(routes.follow_logs(self.id, task=task, stream=stream), last_event_id):
                last_event_id = event.id or last_event_id
                if event.event == "log":
                    yield LogLine.model_validate(event.data)
                elif event.event == "end":
                    return

    def cancel(self, reason: str | None = None, *, wait: bool = False, timeout: float | None = 60.0) -> Self:
        """Ask it to end; with `wait` until it has."""
        self.state = RunState.model_validate(self._http.cancel_run(self.id, reason=reason))
        return self.wait(timeout) if wait else self

    def rerun(self) -> "Run":
        """A new run with the same input."""
        return Run(self._http, self._http.rerun_run(self.id)["run_id"])


class RunGroup(GroupBase):
    """Runs that belong together, in the order in which they were submitted."""

    def __init__(self, http: PyocoHttpClient, run_ids: Iterable[str]) -> None:
        super().__init__(run_ids)
        self._http = http

    def __iter__(self) -> Iterator[Run]:
        return (Run(self._http, run_id) for run_id in self.ids)

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...

    def __getitem__(self, place: int | slice) -> Run | Self:
        if isinstance(place, slice):
            return type(self)(self._http, self.ids[place])
        return Run(self._http, self.ids[place])

    def as_completed(self, timeout: float | None = None, *, progress: bool = False) -> Generator[Run, None, None]:
        """Each run when it has ended, with its result, over one connection. Raises WaitTimeout."""
        with progress_of(len(self), progress) as ended, closing(ends(self._http, self.ids, timeout)) as told:
            for end in told:
                self._statuses[end["run_id"]] = end["status"]
                ended(end["status"])
                yield Run(self._http, end["run_id"], end=end)

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> Self:
        """Until all have ended."""
        for _ in self.as_completed(timeout, progress=progress):
            pass
        return self

    def results(
        self, timeout: float | None = None, *, return_exceptions: bool = False, progress: bool = False
    ) -> list[Any]:
        """The results in the order of the runs. The first failure is raised, or all are put in their places."""
        found: dict[str, Any] = {}
        with closing(self.as_completed(timeout, progress=progress)) as runs:
            for run in runs:
                try:
                    found[run.id] = run.result()
                except (RunEnded, NotFound) as error:
                    if not return_exceptions:
                        raise
                    found[run.id] = error
        return [found[run_id] for run_id in self.ids]

    def cancel(self, reason: str | None = None) -> Self:
        """Ask all of them to end."""
        for run_id in self.ids:
            if run_id not in self._statuses:
                self._http.cancel_run(run_id, reason=reason)
        return self


def ends(http: PyocoHttpClient, run_ids: Sequence[str], timeout: float | None) -> Generator[Json, None, None]:
    """The end of each run when it has come, with its result."""
    outstanding = Outstanding(run_ids, timeout)
    while outstanding:
        with closing(http.stream(outstanding.watch(), deadline=outstanding.stream_deadline)) as events:
            for event in events:
                yield from outstanding.ends(event)
                if outstanding.wants_next_stream:
                    break
        time.sleep(outstanding.pause_seconds())

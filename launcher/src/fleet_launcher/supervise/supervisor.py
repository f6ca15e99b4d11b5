"""Starts the parts in order, watches them, restarts what crashed, stops them in the reverse order."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from fleet_kit.settings import FleetSettings
from fleet_kit.waiting import is_set_within

from ..data_dir.state import PartPhase, PartState
from ..errors import LaunchError
from ..logs.files import last_line
from ..stack.parts import Part
from .process import Child

_FIRST_LOOKS_SECONDS = 0.1
_LOOK_SECONDS = 2.0
# One slow answer on a busy machine does not make a part unhealthy.
_FAILURES_UNTIL_UNHEALTHY = 2
# A part that cannot start fails the whole start after so many attempts, not only at the deadline.
_ATTEMPTS_TO_START = 3

_FIRST_BACKOFF_SECONDS = 0.2
_LONGEST_BACKOFF_SECONDS = 10.0
_BACKOFF_RESET_SECONDS = 60.0


# Called at every change of a part, with the phase it was in before.
Observer = Callable[[PartState, PartPhase], None]


@dataclass(slots=True)
class Backoff:
    """The backoff before the next restart: doubles up to a limit, is reset after a long healthy time."""

    seconds: float = _FIRST_BACKOFF_SECONDS

    def next(self, *, healthy_seconds: float) -> float:
        if healthy_seconds >= _BACKOFF_RESET_SECONDS:
            self.seconds = _FIRST_BACKOFF_SECONDS
        delay = self.seconds
        self.seconds = min(delay * 2, _LONGEST_BACKOFF_SECONDS)
        return delay


class SupervisedPart:
    """One part over its whole life, across restarts of its process."""

    def __init__(self, part: Part, *, stack: str, log: Path, log_settings: FleetSettings, observer: Observer) -> None:
        self.part = part
        self.state = PartState(
            name=part.name, address=part.address, log=str(log), data=str(part.data) if part.data else None
        )
        self.was_healthy = False
        self._stack = stack
        self._log = log
        self._log_settings = log_settings
        self._on_change_of_state = observer
        self._stop_asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._healthy_since: float | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.create_task(self._keep_running(), name=f"keep {self.part.name} running")

    async def stop(self, hurry: asyncio.Event) -> None:
        self._hurry = hurry
        self._stop_asked.set()
        if self._task is not None:
            await self._task

    @property
    def failed_to_start(self) -> bool:
        return not self.was_healthy and self.state.restarts >= _ATTEMPTS_TO_START

    async def _keep_running(self) -> None:
        backoff = Backoff()
        while not self._stop_asked.is_set():
            self._healthy_since = None
            ended = await self._run_once()
            if ended is None:
                break
            healthy_seconds = time.monotonic() - self._healthy_since if self._healthy_since else 0.0
            delay = backoff.next(healthy_seconds=healthy_seconds)
            self.state.restarts += 1
            reason = f"{ended}; restart {self.state.restarts} in {delay:g} s"
            self._become(PartPhase.RESTARTING, reason=reason)
            await is_set_within(self._stop_asked, delay)
        self._become(PartPhase.STOPPED)

    async def _run_once(self) -> str | None:
        """Run one process of the part; return how it ended, None if it was stopped on request."""
        try:
            child = await Child.start(self.part, stack=self._stack, log=self._log, log_settings=self._log_settings)
        except OSError as error:
            return f"not started ({error.strerror})"
        self._become(PartPhase.STARTING, child)
        ended = await self._watch(child)
        if ended is None:
            await child.stop(self._hurry)
        return ended

    async def _watch(self, child: Child) -> str | None:
        ended = asyncio.create_task(child.wait())
        stop = asyncio.create_task(self._stop_asked.wait())
        health = asyncio.create_task(self._watch_health(child))
        await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
        for task in (stop, health):
            task.cancel()
        await asyncio.gather(stop, health, return_exceptions=True)
        if self._stop_asked.is_set():
            ended.cancel()
            return None
        return await ended

    async def _watch_health(self, child: Child) -> None:
        failures = 0
        while True:
            reason = await self._look(child)
            failures = failures + 1 if reason is not None else 0
            if reason is None:
                self._healthy_since = self._healthy_since or time.monotonic()
                self.was_healthy = True
                self._become(PartPhase.HEALTHY, child)
            elif self.state.state is PartPhase.STARTING:
                self._become(PartPhase.STARTING, child, reason=reason)
            elif failures >= _FAILURES_UNTIL_UNHEALTHY:
                self._become(PartPhase.UNHEALTHY, child, reason=reason)
            await asyncio.sleep(_LOOK_SECONDS if self._healthy_since else _FIRST_LOOKS_SECONDS)

    async def _look(self, child: Child) -> str | None:
        try:
            return await self.part.health(child.started_at_clock)
        except Exception as error:  # noqa: BLE001 - a check that fails itself is shown as the reason
            return f"the health check failed: {error!r}"

    def _become(self, phase: PartPhase, child: Child | None = None, *, reason: str | None = None) -> None:
        before, reason_before = self.state.state, self.state.reason
        self.state.state, self.state.reason = phase, reason
        self.state.pid, self.state.started_at = (child.pid, child.started_at) if child else (None, None)
        if (phase, reason) != (before, reason_before):
            self._on_change_of_state(self.state, before)


class Supervisor:
    def __init__(
        self,
        parts: Sequence[Part],
        *,
        stack: str,
        log_of: Callable[[str], Path],
        log_settings: FleetSettings,
        observer: Observer,
    ) -> None:
        self._on_change_of_state = observer
        self._changed = asyncio.Event()
        self.parts = [
            SupervisedPart(
                part, stack=stack, log=log_of(part.name), log_settings=log_settings, observer=self._on_change
            )
            for part in parts
        ]

    @property
    def states(self) -> list[PartState]:
        return [supervised.state for supervised in self.parts]

    async def start(self, *, within_seconds: float) -> None:
        """Start every part, stage by stage, and return when all are healthy."""
        deadline = asyncio.get_running_loop().time() + within_seconds
        for stage in _stages(self.parts, lambda supervised: supervised.part.start_stage):
            for supervised in stage:
                supervised.begin()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._all_healthy(stage)
            except TimeoutError as error:
                late = next(one for one in stage if one.state.state is not PartPhase.HEALTHY)
                why = f" ({late.state.reason})" if late.state.reason else ""
                raise LaunchError(
                    f"{late.part.name} is not healthy after {within_seconds:g} s{why}; {_log_hint(late)}"
                ) from error

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stop every part, stage by stage; `hurry` kills what still runs."""
        for stage in _stages(self.parts, lambda supervised: supervised.part.stop_stage):
            await asyncio.gather(*(supervised.stop(hurry) for supervised in stage))

    async def _all_healthy(self, stage: Sequence[SupervisedPart]) -> None:
        while True:
            self._changed.clear()
            for one in self.parts:
                if one.failed_to_start:
                    raise LaunchError(f"{one.part.name} does not start ({one.state.reason}); {_log_hint(one)}")
            if all(supervised.state.state is PartPhase.HEALTHY for supervised in stage):
                return
            await self._changed.wait()

    def _on_change(self, part: PartState, before: PartPhase) -> None:
        self._changed.set()
        self._on_change_of_state(part, before)


def stop_seconds(parts: Sequence[Part]) -> float:
    """How long an orderly stop of all parts may take."""
    longest: dict[int, float] = {}
    for part in parts:
        longest[part.stop_stage] = max(longest.get(part.stop_stage, 0.0), part.stop_seconds)
    return sum(longest.values())


def _stages(
    parts: Sequence[SupervisedPart], stage_of: Callable[[SupervisedPart], int]
) -> Iterator[Sequence[SupervisedPart]]:
    for _, group in groupby(sorted(parts, key=stage_of), key=stage_of):
        yield list(group)


def _log_hint(failed: SupervisedPart) -> str:
    return f"see {failed.state.log}, its last line: {last_line(Path(failed.state.log))}"

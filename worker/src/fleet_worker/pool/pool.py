"""The runner processes of a worker: one per slot, replaced when one dies."""

import asyncio
import contextlib
import logging
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from fleet_contracts.catalogue import Catalogue, SourceKind
from fleet_contracts.log_events import LogEvent

from ..boundary.flow_version import FlowSources, FlowVersion
from ..boundary.frames import Ready, Setup
from ..boundary.runner_account import AS_THE_AGENT, RunnerStart
from ..boundary.wheel_set import NO_WHEELS, WheelSet
from .pace import Pace
from .runner_process import RunnerDied, RunnerProcess

logger = logging.getLogger(__name__)

_MAX_BACKOFF_SECONDS = 10.0
_TRIAL_SECONDS = 60.0
_SHOWN_CHARACTERS = 500
# How long wheels are not described while runners are being started. Some are for ever: each run may need another.
_LONGEST_RENEWAL_SECONDS = 10.0


class RunnersUnusable(Exception):
    """No runner can be started; the message says what to fix."""


def describe_broken(place: str, failure: Mapping[str, str]) -> str:
    """A sentence about a file that could not be loaded."""
    origin = f" ({failure['exc_origin']})" if failure.get("exc_origin") else ""
    message = " ".join(failure["exc_message"].split())[:_SHOWN_CHARACTERS]
    return f"{place} could not be loaded: {failure['exc_type']}: {message}{origin}"


class RunnerPool:
    def __init__(
        self, setup: Setup, slots: int, wheels: WheelSet = NO_WHEELS, *, start: RunnerStart = AS_THE_AGENT
    ) -> None:
        self._setup = setup
        self._start = start
        # What runs that begin from now on are made of.
        self.version = FlowVersion(wheels, FlowSources(setup.flows_dir, setup.flows_dir))
        # Held by those who try out and put in force another version, as it is made of the one before.
        self.changing = asyncio.Lock()
        # Why the latest version was not put in force; None: it was.
        self.reload_error: str | None = None
        self._logged: FlowVersion | None = None
        self._broken: dict[str, dict[str, str]] = {}
        self._slots = slots
        self._idle: deque[RunnerProcess] = deque()
        self._busy_since: dict[RunnerProcess, float] = {}
        self._waiting: deque[asyncio.Future[RunnerProcess | None]] = deque()
        self._pace = Pace()
        self._alive: set[RunnerProcess] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._retiring: set[asyncio.Task[None]] = set()
        # Set whenever a runner has been started.
        self._started = asyncio.Event()
        # Finds out what the wheels of the version in force offer.
        self._describing: asyncio.Task[None] | None = None
        self._first: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        # Names of the flows that can be run with the version in force.
        self.flows: list[str] = []
        # What is offered with the version in force; a new object whenever runners have loaded other flows.
        self.catalogue = Catalogue()
        # For the metrics.
        self.starts = 0
        self.start_failures = 0
        # Set whenever a runner has become free.
        self.changed = asyncio.Event()

    @property
    def wheels(self) -> WheelSet:
        return self.version.wheels

    @property
    def broken(self) -> dict[str, dict[str, str]]:
        """The files that could not be loaded in the version in force, with what they raised."""
        return self._broken

    @property
    def flows_error(self) -> str | None:
        """Why the flows are not as their files say, for people."""
        if self.reload_error is not None:
            return f"not reloaded: {self.reload_error}"
        if not self._broken:
            return None
        place, failure = next(iter(self._broken.items()))
        more = f"; and {len(self._broken) - 1} more" if len(self._broken) > 1 else ""
        return f"{describe_broken(place, failure)}{more}"

    @property
    def size(self) -> int:
        """The runners that live and are ready, busy or not."""
        return len(self._idle) + len(self._busy_since)

    @property
    def busy(self) -> int:
        return len(self._busy_since)

    @property
    def is_renewing(self) -> bool:
        """Whether a runner is being started or replaced."""
        return len(self._alive) > self.size

    @property
    def is_catalogue_current(self) -> bool:
        """Whether a runner has loaded the version in force."""
        return self._logged is self.version

    @property
    def jobs_ahead(self) -> int:
        return self._pace.jobs_ahead(runners=self.size, busy_since=self._busy_since.values(), now=time.monotonic())

    async def start(self) -> None:
        """Start all runners; returns when the first is ready. Raises RunnersUnusable if it cannot be started."""
        self._keepers = [asyncio.create_task(self._keep_slot()) for _ in range(self._slots)]
        await self._first

    async def try_out(self, version: FlowVersion, *, describes_wheels: bool = False) -> Ready:
        """Start and stop one runner of this version. Raises RunnersUnusable if it cannot be started."""
        runner = self._new_runner(version, describes_wheels=describes_wheels)
        try:
            async with asyncio.timeout(_TRIAL_SECONDS):
                ready = await runner.start()
        except (RunnerDied, OSError) as error:
            raise RunnersUnusable(str(error) or f"it was not ready within {_TRIAL_SECONDS:g} s") from error
        finally:
            await runner.stop()
        if ready.error is not None:
            raise RunnersUnusable(ready.error)
        return ready

    def switch(self, version: FlowVersion, ready: Ready | None = None) -> None:
        """Use this version for runs that begin from now on; `ready` is what a trial of it has found.

        A runner of another version is replaced: at once if it is idle, after its run if it is busy.
        """
        self.version = version
        if ready is not None:
            self._log_flows(ready, version)
        for runner in [runner for runner in self._idle if runner.version is not version]:
            self._idle.remove(runner)
            self._retire(runner)

    @property
    def versions_in_use(self) -> list[FlowVersion]:
        """The version in force, and those of runners that still have another."""
        return [self.version, *(runner.version for runner in self._alive)]

    async def stop(self) -> None:
        keeping = [*self._keepers, *([self._describing] if self._describing is not None else [])]
        for keeper in keeping:
            keeper.cancel()
        await asyncio.gather(*keeping, *self._retiring, return_exceptions=True)
        self._idle.clear()
        await asyncio.gather(*(runner.stop() for runner in list(self._alive)))

    def ask(self) -> asyncio.Future[RunnerProcess | None]:
        """A future of a runner, for exclusive use until `give_back`; first come, first served.

        A caller that stops waiting sets the result to None.
        """
        asked: asyncio.Future[RunnerProcess | None] = asyncio.get_running_loop().create_future()
        if self._idle:
            self._lend(self._idle.popleft(), asked)
        else:
            self._waiting.append(asked)
        return asked

    def give_back(self, runner: RunnerProcess) -> None:
        if (since := self._busy_since.pop(runner, None)) is not None:
            self._pace.note(time.monotonic() - since)
        if runner.version is self.version and not runner.is_spent:
            self._offer(runner)
        else:
            self._retire(runner)

    def note_overbooked(self) -> None:
        """A job that was claimed ahead got no runner in time."""
        self._pace.forget()

    def _offer(self, runner: RunnerProcess) -> None:
        self.changed.set()
        if runner.died.is_set():
            return
        while self._waiting:
            if not (asked := self._waiting.popleft()).done():
                self._lend(runner, asked)
                return
        self._idle.append(runner)

    def _retire(self, runner: RunnerProcess) -> None:
        """Stop the runner; its slot starts another."""
        retiring = asyncio.create_task(runner.stop())
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)

    def _lend(self, runner: RunnerProcess, asked: asyncio.Future[RunnerProcess | None]) -> None:
        self._busy_since[runner] = time.monotonic()
        asked.set_result(runner)

    async def _keep_slot(self) -> None:
        """Keep one runner in this slot: start another when it ends, with backoff after failed starts."""
        backoff = 0.1
        while True:
            version = self.version
            runner = self._new_runner(version)
            self._alive.add(runner)
            try:
                ready = await runner.start()
                if ready.error is not None:
                    raise RunnersUnusable(ready.error)
                if not self._first.done():
                    self._first.set_result(ready)
                backoff = 0.1
                self.starts += 1
                self._log_flows(ready, version)
                self.give_back(runner)
                self._started.set()
                await runner.died.wait()
            except (RunnerDied, RunnersUnusable, OSError) as error:
                if not self._first.done():
                    self._first.set_exception(RunnersUnusable(f"{error}{self._hint}"))
                self.start_failures += 1
                logger.error("a runner could not be started: %s", error)
                await runner.stop()
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _MAX_BACKOFF_SECONDS)
            finally:
                if runner.died.is_set():
                    self._alive.discard(runner)
                    self._busy_since.pop(runner, None)
                    if runner in self._idle:
                        self._idle.remove(runner)

    @property
    def _hint(self) -> str:
        if (account := self._start.account) is None:
            return ""
        return f"; the user {account.name} (PYOCO_RUNNER_USER) must be able to read {sys.prefix} and the flows"

    def _new_runner(self, version: FlowVersion, *, describes_wheels: bool = False) -> RunnerProcess:
        sources, is_synced = version.sources, self._setup.wheel_paths is not None
        setup = replace(
            self._setup,
            flows_dir=sources.flows_dir,
            flows_shown_as=sources.shown_as,
            library_paths=list(sources.library_paths),
            secrets=sources.secrets,
            wheel_paths=list(version.wheels.paths) if is_synced else None,
            describes_wheels=describes_wheels,
        )
        return RunnerProcess(setup, replace(self._start, env=sources.env), version)

    def _log_flows(self, ready: Ready, version: FlowVersion) -> None:
        """Log the flows that can be run, once for each version."""
        if self._logged is version or version is not self.version:
            return
        self._logged = version
        self._take(ready)
        if ready.flows:
            logger.info("flows: %s", ", ".join(ready.flows), extra={"event": LogEvent.FLOWS_LOADED})
        elif self._setup.flow_resolver is None and (folder := version.sources.shown_as) is not None:
            logger.warning("no flows were found in %s", folder)
        if self._describing is not None:
            self._describing.cancel()
        if any(offer.source.kind is SourceKind.WHEEL for offer in self.catalogue.flows):
            self._describing = asyncio.create_task(self._describe_wheels(version))

    async def _describe_wheels(self, version: FlowVersion) -> None:
        """Import the wheels in a process of its own: runners import of them only what a run asks for."""
        # It must not slow down the start of runners, for which runs wait.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_RENEWAL_SECONDS):
                while self.is_renewing:
                    self._started.clear()
                    await self._started.wait()
        try:
            ready = await self.try_out(version, describes_wheels=True)
        except RunnersUnusable as error:
            logger.warning("the catalogue has only the names of flows of wheels: importing them failed: %s", error)
            return
        if version is self.version:
            self._take(ready)

    def _take(self, ready: Ready) -> None:
        self.flows = ready.flows
        self.catalogue = Catalogue.model_validate(ready.catalogue)
        changed = {file: failure for file, failure in ready.broken.items() if self._broken.get(file) != failure}
        self._broken = ready.broken
        for file, failure in changed.items():
            logger.error("the flows of %s cannot be used", file, extra={"event": LogEvent.FLOWS_BROKEN, **failure})

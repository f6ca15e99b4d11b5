"""Keeps the worker's own flows in step with their files: a version is put in force only when it can be loaded."""

import asyncio
import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from fleet_contracts.log_events import LogEvent

from ..boundary.flow_version import FlowSources
from ..boundary.frames import Ready
from ..pool.pool import RunnerPool, RunnersUnusable, describe_broken
from ..settings import WorkerSettings
from ..wheels.own_packages import own_packages
from .copies import FolderCopies, TooLarge
from .env_file import EnvFileUnusable, read_env_file
from .libraries import Libraries
from .requirements import LibrariesUnusable, Requirements
from .watching import watch_code, watch_file

logger = logging.getLogger(__name__)

# A worker starts without its libraries if they take longer; they come into force when they are there.
_LONGEST_WAIT_SECONDS = 30.0
_MOST_NAMED = 3


class EditBroken(Exception):
    """Files that were loaded before cannot be loaded any more; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class _Made:
    # Without the libraries, which may have to be installed first.
    sources: FlowSources
    requirements: Requirements | LibrariesUnusable | None
    digest: str


class OwnFlows:
    def __init__(
        self,
        settings: WorkerSettings,
        copies: FolderCopies | None,
        libraries: Libraries,
        *,
        own_folder: Path,
    ) -> None:
        self._settings = settings
        # None: flows are not loaded from a folder.
        self._copies = copies
        self._libraries = libraries
        self._own_folder = own_folder
        self._folder = settings.find_flows_dir()
        self._wanted = asyncio.Event()
        self._is_forced = False
        # Of the last version that was tried, in force or not.
        self._digest = ""
        self._is_warned = False
        # The installation for the first version.
        self._late: asyncio.Task[FlowSources] | None = None

    @classmethod
    @contextmanager
    def of(cls, settings: WorkerSettings, worker_folder: Path) -> Iterator[Self]:
        """Keep copies in the worker's folder as long as it lives."""
        start = settings.runner_start
        libraries_dir = settings.flow_libraries_dir
        if start.account is not None and "flow_libraries_dir" not in settings.model_fields_set:
            libraries_dir = worker_folder / "libraries"
        libraries = Libraries(libraries_dir, start, timeout_seconds=settings.flow_install_timeout_sec)
        original = settings.find_flows_dir() if settings.flow_resolver is None else None
        own_folder = worker_folder / "flows"
        with (
            nullcontext() if original is None else FolderCopies.kept_in(own_folder, original, start.account)
        ) as copies:
            yield cls(settings, copies, libraries, own_folder=own_folder)

    async def begin(self, pool: RunnerPool) -> None:
        """Make the first version, before runners are started. Raises EnvFileUnusable."""
        try:
            made = await self._make()
        except OSError as error:
            self._warn_of_no_copy(error)
            made = self._make_without_copy()
        self._digest = made.digest
        pool.switch(replace(pool.version, sources=made.sources))
        self._late = installing = asyncio.create_task(self._with_libraries(made))
        done, _ = await asyncio.wait({installing}, timeout=_LONGEST_WAIT_SECONDS)
        if not done:
            logger.warning(
                "the libraries of %s take long; flows that need them follow later",
                self._folder,
                extra={"event": LogEvent.FLOW_LIBRARIES},
            )
            installing.add_done_callback(self._on_late)
            return
        try:
            sources = installing.result()
            pool.switch(replace(pool.version, sources=sources))
            # Not before: what is needed now may not have been used for long.
            await asyncio.to_thread(self._libraries.keep_only, sources.library_paths)
        except LibrariesUnusable as error:
            pool.reload_error = str(error)
            logger.error(
                "flows that need other libraries cannot be run: %s", error, extra={"event": LogEvent.FLOW_LIBRARIES}
            )

    def ask(self) -> None:
        """Reload even if no file of the flows folder has changed: other modules may have."""
        self._is_forced = True
        self._wanted.set()

    async def keep(self, pool: RunnerPool, on_state: Callable[[], None]) -> None:
        """Reload for ever: after changes if the settings say so, and when asked."""
        watching = self._watch()
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                is_forced, self._is_forced = self._is_forced, False
                await self._reload(pool, is_forced=is_forced)
                on_state()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def stop(self) -> None:
        """End an installation that is under way."""
        if self._late is not None:
            self._late.cancel()
            await asyncio.gather(self._late, return_exceptions=True)

    def _on_late(self, installing: asyncio.Task[FlowSources]) -> None:
        # A failure is found again, and said, by the reload.
        if not installing.cancelled() and installing.exception() is None:
            logger.info("the libraries are there", extra={"event": LogEvent.FLOW_LIBRARIES})
        self.ask()

    def _watch(self) -> list[asyncio.Task[None]]:
        if not self._settings.flows_reload:
            return []
        watches = []
        if self._copies is not None and self._folder is not None:
            watches.append(watch_code(self._folder, self._wanted.set, apart_from=self._own_folder))
        if (file := self._settings.flow_env_file) is not None:
            watches.append(watch_file(file.absolute(), self._wanted.set))
        return [asyncio.create_task(watch) for watch in watches]

    async def _reload(self, pool: RunnerPool, *, is_forced: bool) -> None:
        try:
            made = await self._make()
        except (EnvFileUnusable, OSError) as error:
            # The same failure is said once.
            if (digest := f"{type(error).__name__}: {error}") != self._digest or is_forced:
                self._digest = digest
                self._refuse(pool, error)
            return
        if made.digest != self._digest or is_forced:
            self._digest = made.digest
            try:
                sources = await self._with_libraries(made)
                async with pool.changing:
                    version = replace(pool.version, sources=sources)
                    ready = await pool.try_out(version)
                    _check(ready, pool)
                    pool.reload_error = None
                    pool.switch(version, ready)
            except (RunnersUnusable, LibrariesUnusable, EditBroken) as error:
                self._refuse(pool, error)
            else:
                names = ", ".join(ready.flows) or "none"
                logger.info("the flows were reloaded: %s", names, extra={"event": LogEvent.FLOWS_RELOADED})
        in_use = [version.sources for version in pool.versions_in_use]
        if self._copies is not None:
            self._copies.keep_only({sources.flows_dir for sources in in_use if sources.flows_dir is not None})
        self._libraries.keep_only({path for sources in in_use for path in sources.library_paths})

    async def _make(self) -> _Made:
        """Copy the flows folder and read the variables, as they are now. Raises OSError and EnvFileUnusable."""
        without_copy = self._make_without_copy()
        if self._copies is None:
            return without_copy
        try:
            copy = await asyncio.to_thread(self._copies.make)
        except TooLarge as error:
            self._warn_of_no_copy(error)
            # Without a copy, nobody knows whether the code differs.
            return replace(without_copy, digest=uuid.uuid4().hex)
        sources = replace(without_copy.sources, flows_dir=str(copy.folder))
        return replace(without_copy, sources=sources, digest=f"{without_copy.digest} {copy.digest}")

    def _make_without_copy(self) -> _Made:
        """Runners load the flows from the folder itself."""
        env_file = self._settings.flow_env_file
        env = {} if env_file is None else read_env_file(env_file)
        shown = None if self._folder is None else str(self._folder)
        requirements: Requirements | LibrariesUnusable | None = None
        if self._copies is not None and self._folder is not None:
            try:
                requirements = Requirements.of(self._folder, own_packages())
            except LibrariesUnusable as error:
                requirements = error
        asked = requirements.digest if isinstance(requirements, Requirements) else str(requirements)
        digest = hashlib.sha256(f"{sorted(env.items())} {asked}".encode()).hexdigest()
        return _Made(FlowSources(shown, shown, env=env), requirements, digest)

    async def _with_libraries(self, made: _Made) -> FlowSources:
        """Install what is missing. Raises LibrariesUnusable."""
        if isinstance(made.requirements, LibrariesUnusable):
            raise made.requirements
        paths = [] if made.requirements is None else [str(await self._libraries.get(made.requirements))]
        return replace(made.sources, library_paths=paths)

    def _warn_of_no_copy(self, why: Exception) -> None:
        if not self._is_warned:
            self._is_warned = True
            logger.warning("runners load %s itself, so a broken edit has its effect there: %s", self._folder, why)

    def _refuse(self, pool: RunnerPool, error: Exception) -> None:
        """The version in force stays so."""
        pool.reload_error = str(error)
        logger.error(
            "the flows could not be reloaded, those from before stay in force: %s",
            error,
            extra={"event": LogEvent.FLOWS_RELOAD_FAILED},
        )


def _check(ready: Ready, pool: RunnerPool) -> None:
    """Raise EditBroken if a file or a flow that is in force was broken by the edit.

    A new file may be broken from the start, unless it takes the name of a flow that is in force.
    """
    before = pool.version.sources
    # As the runner names flows that were found but are refused.
    refused = tuple(f" (flow {name!r})" for name in set(pool.flows) - set(ready.flows))
    broken = [
        place
        for place in ready.broken
        if place not in pool.broken and (before.had_file(place) or place.endswith(refused))
    ]
    if broken:
        said = "; ".join(describe_broken(place, ready.broken[place]) for place in broken[:_MOST_NAMED])
        more = f"; and {len(broken) - _MOST_NAMED} more" if len(broken) > _MOST_NAMED else ""
        raise EditBroken(said + more)

"""Keeps the worker's wheels in step with the registry: at start, periodically, and when a flow is missing."""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fleet_contracts.log_events import LogEvent
from fleet_contracts.problems import Problem
from fleet_contracts.wheel import InstalledWheel
from fleet_contracts.worker_record import WheelSync, WheelSyncResult
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.events import log_integration_call
from fleet_kit.logs.setup import problem_fields
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.stores.objects import ObjectDamaged, StoredObject
from fleet_kit.waiting import is_set_within

from ..pool.pool import RunnerPool, RunnersUnusable
from ..settings import WorkerSettings
from .choice import Choice, Interpreter, choose
from .home import WheelHome
from .install import InstallFailed, install, why_unusable
from .own_packages import own_packages
from .registry import Mark, WheelRegistry

logger = logging.getLogger(__name__)

_INSTALLS_AT_ONCE = min(4, os.cpu_count() or 1)
# How often the registry is read at once in one sync, as it may change meanwhile.
_LOOKS = 3
# How long the first run waits for a registry that does not answer although NATS does.
_FIRST_WAIT_SECONDS = 5.0
# Between reads, until a change that was announced is visible.
_PAUSES_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_FIRST_PAUSE_SECONDS = 0.25
_JUST_LOOKED_SECONDS = 1.0
# The worker's registry record is written every few seconds: it does not list hundreds of names.
_MOST_LISTED = 200


class SyncedWheels:
    """Keeps one set of wheels in force; another set replaces it as a whole, when all of it is installed."""

    def __init__(
        self,
        link: NatsLink,
        settings: WorkerSettings,
        home: WheelHome,
        pool: RunnerPool,
        *,
        on_state: Callable[[WheelSync], None],
        stopping: asyncio.Event,
    ) -> None:
        self._link = link
        self._settings = settings
        self._home = home
        self._pool = pool
        self._on_state = on_state
        self._stopping = stopping
        self._registry = WheelRegistry(link, settings.wheel_object_store_bucket)
        self._interpreter = Interpreter.here(own_packages())
        # Reasons by nuid: wheels that were fetched and cannot be used, so that they are not fetched again.
        self._refused: dict[str, str] = {}
        # Jobs are pulled from then on. If the first sync keeps failing, the worker soon works without it.
        self.has_begun = asyncio.Event()
        # When the last look that no outage has disturbed began, by the monotonic clock; notified when it has ended.
        self._looked_at = float("-inf")
        self._looked = asyncio.Condition()
        # The mark of the registry at the last sync.
        self._mark: Mark | None = None
        self._logged_error: str | None = None
        self._wake = asyncio.Event()
        # Reads that are left for a change that was announced and is not visible yet.
        self._looks_left = 0
        self._listening: Subscription | None = None
        # For the metrics.
        self.successes = 0
        self.failures = 0
        self._state = WheelSync(enabled=True, last_result=WheelSyncResult.IDLE)
        self._show(installed_wheels=_listed(pool.wheels.wheels))

    @property
    def last_error(self) -> str | None:
        """Why the last sync failed: the wheels may not be those of the registry."""
        return self._state.last_error

    async def listen(self) -> None:
        """Subscribe to changes, after every connect. A change that is missed is found by the next periodic read."""
        if self._listening is None:
            self._listening = await self._link.client.subscribe(self._registry.changes_subject, cb=self._on_change)
        self._wake.set()

    def look_soon(self) -> None:
        """Have the registry's state looked at, without waiting for it, unless that was just done."""
        if time.monotonic() - self._looked_at > _JUST_LOOKED_SECONDS:
            self._wake.set()

    async def catch_up(self, since: float) -> None:
        """Wait until the registry's state at `since` (monotonic clock) is in force, or its sync has failed.

        Costs one small request if nothing has changed; many callers at once share it.
        """
        if self._looked_at < since:
            self._wake.set()
            async with self._looked:
                await self._looked.wait_for(lambda: self._looked_at >= since)

    async def keep(self) -> None:
        """Sync with the registry for ever: the only task that does."""
        await self._begin()
        interval = self._settings.wheel_sync_interval_sec
        due_at = time.monotonic() + interval
        while not self._stopping.is_set():
            is_woken = await is_set_within(self._wake, interval)
            if is_due := not is_woken or time.monotonic() >= due_at:
                due_at = time.monotonic() + interval
            self._wake.clear()
            before = self._mark
            await self._look(try_again=is_due)
            if self._mark != before:
                self._looks_left = 0
            elif self._looks_left:
                self._schedule_reread()

    async def _begin(self) -> None:
        await self._link.wait_ready()
        give_up_at = time.monotonic() + _FIRST_WAIT_SECONDS
        while not self.has_begun.is_set() and not self._stopping.is_set():
            await self._look(try_again=True)
            if self._mark is not None or time.monotonic() >= give_up_at:
                self.has_begun.set()
            else:
                await asyncio.sleep(_FIRST_PAUSE_SECONDS)

    async def _on_change(self, _msg: Msg) -> None:
        self._looks_left = len(_PAUSES_SECONDS)
        self._wake.set()

    def _schedule_reread(self) -> None:
        """Schedule another read: NATS delivers a message before it stores it; other servers store it even later."""
        pause = _PAUSES_SECONDS[-self._looks_left]
        self._looks_left -= 1
        asyncio.get_running_loop().call_later(pause, self._wake.set)

    async def _look(self, *, try_again: bool) -> None:
        begun_at, connection = time.monotonic(), self._link.reconnects
        try:
            await self._sync(try_again=try_again)
        except BaseException:
            self._wake.set()  # the result is unknown: callers wait for the next look
            raise
        # An outage says nothing about the registry: callers wait for the look after the next connect.
        if self._link.down_because is None and self._link.reconnects == connection:
            self._looked_at = begun_at
            async with self._looked:
                self._looked.notify_all()
        in_use = {path for version in self._pool.versions_in_use for path in version.wheels.paths}
        await asyncio.to_thread(self._home.keep_only, in_use)

    async def _sync(self, *, try_again: bool) -> None:
        """Sync if the registry has changed or, with `try_again`, if the last sync failed."""
        now = time.time()
        mark: Mark | None = None
        try:
            self._link.require()
            mark = await self._registry.mark()
            if mark != self._mark or (self.last_error is not None and try_again):
                mark = await self._follow(mark)
            elif self.last_error is not None:
                return
        except (NatsUnavailable, InstallFailed, OSError) as error:
            is_outage = isinstance(error, NatsUnavailable) and not isinstance(error, ObjectDamaged)
            # An outage is not the registry's fault: without a mark, the next read tries again.
            self._mark = None if is_outage else mark
            self._failed(error, now, is_outage=is_outage)
        else:
            self._mark = mark
            self._went_well(now)

    async def _follow(self, mark: Mark) -> Mark:
        """Install what the registry has, at that mark or a later one; returns the mark."""
        for _ in range(_LOOKS - 1):
            try:
                await self._get_all()
            except (InstallFailed, ObjectDamaged):
                before, mark = mark, await self._registry.mark()
                if mark == before:
                    raise
                # The wheel that failed may have been removed or replaced.
            else:
                return mark
        await self._get_all()
        return mark

    async def _get_all(self) -> None:
        wheels = await self._registry.wheels()
        self._refused = {nuid: reason for nuid, reason in self._refused.items() if nuid in wheels}
        while True:
            choice = choose(
                wheels.values(), worker_tags=self._settings.tags, interpreter=self._interpreter, refused=self._refused
            )
            missing = [wheel for wheel in choice.selected if not self._home.has(wheel)]
            if not missing:
                return await self._put_in_force(choice)
            for start in range(0, len(missing), _INSTALLS_AT_ONCE):
                some = missing[start : start + _INSTALLS_AT_ONCE]
                await _all_of([self._get(wheel, wheels[wheel.nuid]) for wheel in some])

    async def _get(self, wheel: InstalledWheel, stored: StoredObject) -> None:
        with self._home.scratch_folder() as scratch:
            file = scratch / wheel.name
            await self._asked("nats", "fetch_wheel", wheel, self._registry.fetch(stored, file))
            reason = await asyncio.to_thread(why_unusable, file, self._interpreter)
            if reason is not None:
                self._refused[wheel.nuid] = reason
                return
            timeout = self._settings.wheel_install_timeout_sec
            installing = install(file, into=scratch / "tree", scratch=scratch, timeout_seconds=timeout)
            await self._asked("pip", "install", wheel, installing)
            await asyncio.to_thread(self._home.add, wheel, scratch / "tree")

    async def _asked(self, provider: str, operation: str, wheel: InstalledWheel, work: Awaitable[None]) -> None:
        """Await a call to NATS or pip, and log how it went."""
        begun = time.perf_counter()
        failure: Exception | None = None
        try:
            await work
        except Exception as error:
            failure = error
            raise
        finally:
            log_integration_call(
                logger,
                provider=provider,
                operation=operation,
                # Always the first attempt: the next sync tries again.
                attempt=1,
                timeout_seconds=self._settings.wheel_install_timeout_sec
                if provider == "pip"
                else self._settings.nats_request_timeout_sec,
                begun=begun,
                entity_id=f"wheel:{wheel.name}",
                error=failure,
            )

    async def _put_in_force(self, choice: Choice) -> None:
        new, old = self._home.set_of(choice.selected), self._pool.wheels
        self._state = self._state.model_copy(
            update={
                "selected_count": len(new.names),
                "selected_wheels": new.names[:_MOST_LISTED],
                "skipped_incompatible_count": len(choice.skipped),
                "skipped_incompatible": choice.skipped[:_MOST_LISTED],
            }
        )
        if list(new.paths) == list(old.paths):
            return
        async with self._pool.changing:
            version = replace(self._pool.version, wheels=new)
            try:
                await self._pool.try_out(version)
            except RunnersUnusable as error:
                raise InstallFailed(
                    f"no runner can be started with {', '.join(new.names) or 'no wheels'}: {error}"
                ) from error
            await asyncio.to_thread(self._home.note, new.wheels)
            self._pool.switch(version)
        updated = [wheel.name for wheel, path in zip(new.wheels, new.paths, strict=True) if path not in old.paths]
        removed = [name for name in old.names if name not in new.names]
        self._state = self._state.model_copy(
            update={
                "last_synced_at": time.time(),
                "updated_count": len(updated),
                "updated_wheels": updated[:_MOST_LISTED],
                "removed_count": len(removed),
                "removed_wheels": removed[:_MOST_LISTED],
                "installed_wheels": _listed(new.wheels),
            }
        )
        logger.info(
            "wheels in force: %s",
            ", ".join(new.names) or "none",
            extra={"event": LogEvent.WHEELS_SYNCED, "meta": {"updated": updated, "removed": removed}},
        )

    def _went_well(self, now: float) -> None:
        if self._logged_error is not None:
            logger.info("wheels are in step with the registry again", extra={"event": LogEvent.WHEEL_SYNC_RECOVERED})
        self._logged_error = None
        self.successes += 1
        self._show(
            last_result=WheelSyncResult.OK,
            last_error=None,
            last_attempt_at=now,
            last_success_at=now,
            last_synced_at=self._state.last_synced_at or now,
        )

    def _failed(self, error: Exception, now: float, *, is_outage: bool) -> None:
        sentence = str(error) or type(error).__name__
        self.failures += 1
        # Messages of an outage vary: one name for all of them, so that it is logged once.
        name = "NATS" if is_outage else sentence
        if name != self._logged_error:
            self._logged_error = name
            logger.log(
                logging.WARNING if is_outage else logging.ERROR,
                "wheels could not be synced, those in force stay so: %s",
                sentence,
                extra={
                    "event": LogEvent.WHEEL_SYNC_FAILED,
                    **problem_fields(Problem.NATS_UNAVAILABLE if is_outage else Problem.WHEEL_SYNC_FAILED),
                },
            )
        self._show(last_result=WheelSyncResult.ERROR, last_error=sentence, last_attempt_at=now)

    def _show(self, **changes: Any) -> None:
        self._state = self._state.model_copy(update=changes)
        self._on_state(self._state)


def _listed(wheels: Sequence[InstalledWheel]) -> list[InstalledWheel]:
    return list(wheels[:_MOST_LISTED])


async def _all_of(work: Sequence[Any]) -> None:
    """Await everything, then raise the first failure."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result

"""The runner processes of a worker: one per slot, replaced when one dies."""

import asyncio
import logging
from collections import deque

from .frames import Ready, Setup
from .runner_process import RunnerDied, RunnerProcess

logger = logging.getLogger(__name__)

_MAX_BACKOFF_SECONDS = 10.0


class RunnersUnusable(Exception):
    """No runner can be started; the message says what to fix."""


class RunnerPool:
    def __init__(self, setup: Setup, slots: int) -> None:
        self._setup = setup
        self._slots = slots
        self._idle: deque[RunnerProcess] = deque()
        self._some_idle = asyncio.Event()
        self._alive: set[RunnerProcess] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._first: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()

    @property
    def idle(self) -> int:
        return len(self._idle)

    async def start(self) -> None:
        """Start all runners; returns when the first one is ready. RunnersUnusable if it cannot be."""
        self._keepers = [asyncio.create_task(self._keep_slot()) for _ in range(self._slots)]
        ready = await self._first
        for file, failure in ready.broken.items():
            logger.error("the flows of %s cannot be used", file, extra={"event": "flows_broken", **failure})
        if ready.flows:
            logger.info("flows: %s", ", ".join(ready.flows), extra={"event": "flows_loaded"})
        elif self._setup.flow_resolver is None:
            logger.warning("no flows were found in %s", self._setup.flows_dir)

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._idle.clear()
        await asyncio.gather(*(runner.stop() for runner in list(self._alive)))

    async def wait_idle(self) -> None:
        await self._some_idle.wait()

    def take(self) -> RunnerProcess | None:
        """An idle runner, now the caller's until it is given back."""
        runner = self._idle.popleft() if self._idle else None
        if not self._idle:
            self._some_idle.clear()
        return runner

    def give_back(self, runner: RunnerProcess) -> None:
        if not runner.died.is_set() and runner not in self._idle:
            self._idle.append(runner)
            self._some_idle.set()

    async def _keep_slot(self) -> None:
        """Have a runner in this slot, for ever."""
        backoff = 0.1
        while True:
            runner = RunnerProcess(self._setup)
            self._alive.add(runner)
            try:
                await runner.start()
                ready = await runner.ready()
                if ready.error is not None:
                    raise RunnersUnusable(ready.error)
                if not self._first.done():
                    self._first.set_result(ready)
                backoff = 0.1
                self.give_back(runner)
                await runner.died.wait()
            except (RunnerDied, RunnersUnusable, OSError) as error:
                if not self._first.done():
                    self._first.set_exception(RunnersUnusable(f"{error}"))
                logger.error("a runner could not be started: %s", error)
                await runner.stop()
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _MAX_BACKOFF_SECONDS)
            finally:
                if runner.died.is_set():
                    self._forget(runner)

    def _forget(self, runner: RunnerProcess) -> None:
        self._alive.discard(runner)
        if runner in self._idle:
            self._idle.remove(runner)
            if not self._idle:
                self._some_idle.clear()

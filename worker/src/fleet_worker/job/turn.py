"""Waits for a free runner, up to a time limit, and stops waiting when the run must not begin any more."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..pool.pool import RunnerPool
from ..pool.runner_process import RunnerProcess

# How long a run that was claimed ahead waits for a runner before it is handed back.
_WAIT_SECONDS = 0.3
# How often that is prolonged while a runner is being started, which may never be ready.
_MOST_PROLONGATIONS = 30


class Turn:
    def __init__(self, pool: RunnerPool, is_wanted: Callable[[], bool]) -> None:
        self._pool = pool
        self._is_wanted = is_wanted
        self._asked: asyncio.Future[RunnerProcess | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._prolongations = 0

    async def wait(self) -> RunnerProcess | None:
        """A runner for the run; None if the run must not begin any more, or no runner was free in time."""
        self._start_timer()
        try:
            while self._is_wanted():
                self._asked = self._pool.ask()
                runner = await self._asked
                if runner is None:
                    return None
                if not self._is_wanted():
                    self._pool.give_back(runner)
                elif not runner.died.is_set():
                    return runner
            return None
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._asked = None

    async def wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for work that is needed before the run can begin (again), or until `give_up`."""
        self._asked = asyncio.get_running_loop().create_future()
        working = asyncio.create_task(work)
        working.add_done_callback(lambda _: self.give_up())
        try:
            await self._asked
            if working.done():
                await working
        finally:
            self._asked = None
            working.cancel()

    def give_up(self) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(None)

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_WAIT_SECONDS, self._on_timeout)

    def _on_timeout(self) -> None:
        if self._pool.is_renewing and self._prolongations < _MOST_PROLONGATIONS:
            self._prolongations += 1
            self._start_timer()  # a runner will be ready soon
        else:
            self.give_up()

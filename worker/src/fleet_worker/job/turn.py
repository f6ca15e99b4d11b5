"""A run's turn on a runner: waited for with some patience, and given up when the run is not wanted any more."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..pool.pool import RunnerPool
from ..pool.runner_process import RunnerProcess

# So long does a run that was claimed ahead wait for its runner; then others may have it.
_PATIENCE_SECONDS = 0.3
# So often is that prolonged while a runner is being started: it may never be ready.
_MOST_PROLONGATIONS = 30


class Turn:
    def __init__(self, pool: RunnerPool, is_unwanted: Callable[[], bool]) -> None:
        self._pool = pool
        self._is_unwanted = is_unwanted
        self._asked: asyncio.Future[RunnerProcess | None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._prolongations = 0

    async def wait(self) -> RunnerProcess | None:
        """A runner to begin in; None if the run shall not begin here, or none was free in time."""
        self._be_patient()
        try:
            while not self._is_unwanted():
                self._asked = self._pool.ask()
                runner = await self._asked
                if runner is None:
                    return None
                if self._is_unwanted():
                    self._pool.give_back(runner)
                elif not runner.died.is_set():
                    return runner
            return None
        finally:
            if self._patience is not None:
                self._patience.cancel()
            self._asked = None

    async def wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        """Until the work is done, before the run begins (again), or until the run is not wanted any more."""
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

    def _be_patient(self) -> None:
        self._patience = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._lose_patience)

    def _lose_patience(self) -> None:
        if self._pool.is_renewing and self._prolongations < _MOST_PROLONGATIONS:
            self._prolongations += 1
            self._be_patient()  # one will be there soon
        else:
            self.give_up()

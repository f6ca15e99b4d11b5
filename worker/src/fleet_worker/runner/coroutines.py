"""Awaits the coroutines of tasks on an event loop that has a thread of its own."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any

# How long coroutines that a run leaves behind may take to react to their cancellation.
_END_SECONDS = 1.0


class TaskCancelled(BaseException):
    """The run was cancelled while a coroutine of it was awaited. No Exception, as pyoco would retry the task."""


class Coroutines:
    """One loop for all runs of a process: clients that flows make at import stay usable."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        # Used in the loop's thread only.
        self._running: set[asyncio.Task[Any]] = set()
        self._is_used = False
        # Something a run has left behind does not end: the process should be replaced.
        self.is_stuck = False

    def run(
        self,
        coroutine: Coroutine[Any, Any, Any],
        *,
        is_cancelled: Callable[[], bool],
        deadline: float | None,
        sentence: str,
    ) -> Any:
        """Wait for the coroutine's result. At the deadline it is cancelled, and TimeoutError says the sentence.

        It starts with the context variables of this thread. TaskCancelled if the run was cancelled.
        """
        work = self._supervise(coroutine, is_cancelled, deadline, sentence)
        return asyncio.run_coroutine_threadsafe(work, self._started()).result()

    def cancel(self) -> None:
        """Cancel the coroutines that run; one that is about to start sees `is_cancelled`."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_running)

    def end(self) -> None:
        """After a run: cancel everything that it left on the loop, and wait for it briefly."""
        if not self._is_used:
            return
        self._is_used = False
        ended = asyncio.run_coroutine_threadsafe(self._end_all(), self._started())
        try:
            self.is_stuck |= not ended.result(timeout=_END_SECONDS + 1)
        except TimeoutError:
            self.is_stuck = True

    async def _supervise(
        self,
        coroutine: Coroutine[Any, Any, Any],
        is_cancelled: Callable[[], bool],
        deadline: float | None,
        sentence: str,
    ) -> Any:
        if is_cancelled():
            coroutine.close()
            raise TaskCancelled
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            coroutine.close()
            raise TimeoutError(sentence)
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        limit = asyncio.timeout_at(deadline)
        try:
            async with limit:
                return await coroutine
        except TimeoutError as error:
            # It may be the task's own.
            raise (TimeoutError(sentence) if limit.expired() else error) from error.__cause__
        except asyncio.CancelledError:
            if is_cancelled():
                raise TaskCancelled from None
            raise
        finally:
            self._running.discard(task)

    def _cancel_running(self) -> None:
        for task in self._running:
            task.cancel()

    async def _end_all(self) -> bool:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if not left:
            return True
        _, pending = await asyncio.wait(left, timeout=_END_SECONDS)
        return not pending

    def _started(self) -> asyncio.AbstractEventLoop:
        self._is_used = True
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._serve, args=[self._loop], name="fleet-asyncio", daemon=True)
                # It serves all runs, so it belongs to no task.
                contextvars.Context().run(thread.start)
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            # A coroutine's SystemExit reaches the task that awaits it; it must not end the loop of the others.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()

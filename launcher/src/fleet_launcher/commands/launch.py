"""Runs a stack in this process: checks, start, supervision, and an orderly stop however it ends."""

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from ..data_dir.folder import DataFolder, remove_sockets
from ..data_dir.state import PartPhase, PartState, StackState, locked, read_state, write_state
from ..part_processes import end_processes, started_at
from ..stack.parts import WORKER_PREFIX
from ..stack.stack import StackPlan
from ..supervise.supervisor import Supervisor, stop_seconds
from .console import Console
from .flow_news import FlowNewsReader

INTERRUPTED_EXIT_CODE = 130

_QUIET_STOP_SECONDS = 1.0
_SAVE_AGAIN_SECONDS = 1.0
_NEWS_SECONDS = 0.3


def run_stack(plan: StackPlan, *, console: Console, when_ready: Callable[[], None]) -> int:
    """Start the parts of the plan, supervise them until a signal, stop them; return the exit code."""
    folder = plan.folder
    with locked(folder):
        if stopped := end_leftovers(folder):
            console.say(f"stopped what an earlier stack had left running: {', '.join(stopped)}")
        return asyncio.run(_Launch(plan, console).run(when_ready))


def end_leftovers(folder: DataFolder) -> list[str]:
    """End the processes left by a stack whose launcher was killed; return the names of the parts that still ran.

    The caller must hold the lock of the data dir: then no launcher supervises those processes.
    """
    state = read_state(folder)
    if state is None:
        return []
    stopped = [
        part.name
        for part in state.parts
        if end_processes(state.stack, part.name, part.pid, part.started_at, at_once=False)
    ]
    _clean_up(folder, state)
    return stopped


class _Launch:
    def __init__(self, plan: StackPlan, console: Console) -> None:
        launcher_started_at = started_at(os.getpid())
        assert launcher_started_at is not None
        self._plan = plan
        self._folder = folder = plan.folder
        self._console = console
        self._supervisor: Supervisor | None = None
        self._flow_news: FlowNewsReader | None = None
        self._listening: asyncio.Task[None] | None = None
        self._is_starting = True
        self._late_save: asyncio.TimerHandle | None = None
        self._state = StackState(
            stack=uuid.uuid4().hex,
            url=plan.url,
            nats_url=None if plan.with_nats else plan.settings.nats_url,
            launcher_pid=os.getpid(),
            launcher_started_at=launcher_started_at,
            sockets=str(folder.sockets),
            stop_seconds=0,
            parts=[],
        )

    async def run(self, when_ready: Callable[[], None]) -> int:
        signals = _Signals()
        write_state(self._folder, self._state)
        try:
            if await signals.let_finish(self._start()):
                self._console.show_parts(self._state.parts)
                self._console.show_ready(self._state.url, self._state.example_commands)
                when_ready()
                await signals.interrupted.wait()
        finally:
            self._is_starting = False
            self._console.end_progress()
            await self._stop(signals.hurry)
            if self._listening is not None:
                self._listening.cancel()
                self._show_flow_news()
            if self._late_save is not None:
                self._late_save.cancel()
            _clean_up(self._folder, self._state)
        return signals.exit_code

    async def _start(self) -> None:
        parts = await self._plan.build()
        self._folder.make_sockets()
        for part in parts:
            self._folder.rotate_log(part.name)
        self._supervisor = Supervisor(
            parts,
            stack=self._state.stack,
            log_of=self._folder.log,
            log_settings=self._plan.settings,
            observer=self._on_change,
        )
        # Shared with the supervisor, not copied: its changes are in the next write of the state file.
        self._state.parts = self._supervisor.states
        self._state.stop_seconds = stop_seconds(parts)
        workers = [part.name for part in parts if part.name.startswith(WORKER_PREFIX)]
        self._flow_news = FlowNewsReader(self._folder, workers)
        self._listening = asyncio.create_task(self._keep_showing_flow_news())
        self._console.say(f"starting {len(parts)} parts in {self._folder.path}")
        await self._supervisor.start(within_seconds=self._plan.settings.start_timeout_sec)
        self._state.example_commands = await self._plan.example_commands()
        write_state(self._folder, self._state)
        self._console.end_progress()
        self._is_starting = False

    async def _keep_showing_flow_news(self) -> None:
        while True:
            self._show_flow_news()
            await asyncio.sleep(_NEWS_SECONDS)

    def _show_flow_news(self) -> None:
        assert self._flow_news is not None
        for news in self._flow_news.new():
            self._console.show_flow_news(news.part, news.text, is_error=news.is_error)

    async def _stop(self, hurry: asyncio.Event) -> None:
        if self._supervisor is None:
            return
        self._console.say("stopping")
        explaining = asyncio.create_task(self._explain_waiting(self._supervisor))
        await self._supervisor.stop(hurry)
        explaining.cancel()
        self._console.say("stopped")

    async def _explain_waiting(self, supervisor: Supervisor) -> None:
        await asyncio.sleep(_QUIET_STOP_SECONDS)
        busy = [
            one for one in supervisor.parts if one.part.finishes_work and one.state.state is not PartPhase.STOPPED
        ]
        if busy:
            workers = "1 worker" if len(busy) == 1 else f"{len(busy)} workers"
            self._console.say(f"waiting for {workers} to finish; Ctrl-C again to stop at once")

    def _save(self) -> None:
        """Write the state file; on a full disk retry until it succeeds, or `status` would stay out of date."""
        was_late, self._late_save = self._late_save is not None, None
        try:
            write_state(self._folder, self._state)
        except OSError as error:
            if not was_late:
                self._console.say(f"cannot write {self._folder.state} ({error.strerror}); `status` is out of date")
            self._late_save = asyncio.get_running_loop().call_later(_SAVE_AGAIN_SECONDS, self._save)

    def _on_change(self, part: PartState, before: PartPhase) -> None:
        if self._late_save is not None:
            self._late_save.cancel()
        self._save()
        if self._is_starting and part.state is not PartPhase.RESTARTING:
            self._console.show_progress(self._state.parts, part if part.state is not before else None)
        else:
            self._console.show_change(part, before)


class _Signals:
    """Ctrl-C, SIGTERM and a closed terminal ask for an orderly stop; another Ctrl-C for a quick one."""

    def __init__(self) -> None:
        self.interrupted = asyncio.Event()
        self.hurry = asyncio.Event()
        self.exit_code = 0
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._on_ctrl_c)
        loop.add_signal_handler(signal.SIGTERM, self.interrupted.set)
        # Under nohup the stack outlives its terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self.interrupted.set)

    async def let_finish(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run the work; False if a signal came before its end, then it is cancelled."""
        working = asyncio.create_task(work)
        interrupted = asyncio.create_task(self.interrupted.wait())
        await asyncio.wait({working, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if working.done():
            await working
            return True
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        return False

    def _on_ctrl_c(self) -> None:
        if self.interrupted.is_set():
            self.hurry.set()
        else:
            self.exit_code = INTERRUPTED_EXIT_CODE
            self.interrupted.set()


def _clean_up(folder: DataFolder, state: StackState) -> None:
    remove_sockets(Path(state.sockets))
    folder.state.unlink(missing_ok=True)

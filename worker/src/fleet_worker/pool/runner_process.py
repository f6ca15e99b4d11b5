"""The agent's side of a runner: start it, talk to it, notice its death, end it with everything it started."""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fleet_contracts.events import EventKind
from fleet_contracts.log_events import LogEvent
from fleet_kit.waiting import is_set_within

from ..boundary.descendants import orphans
from ..boundary.flow_version import FlowVersion
from ..boundary.frames import (
    LOG_CHUNK_CHARACTERS,
    Cancel,
    Conclusion,
    Decoder,
    Frame,
    Progress,
    Ready,
    Run,
    Setup,
    Stop,
    encode,
)
from ..boundary.masking import Secrets
from ..boundary.memory import resident_bytes
from ..boundary.runner_account import RunnerStart
from ..boundary.wheel_set import WheelSet
from ..boundary.workspace import spare_folder
from .output_pipes import OutputPipes

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_SECONDS = 2.0
_NICENESS_OF_DESCRIBING = 10
_LOOK_SECONDS = 0.5
_MAX_LINE_BYTES = 16 * 1024
# Lines of Python's faulthandler: they name places in the code, but no values.
_CRASH_REPORT = re.compile(
    r'Fatal Python error: |(?:Current t|T)hread 0x|  File ".*", line \d+ in |Extension modules: '
)


class RunnerDied(Exception):
    def __init__(self, returncode: int) -> None:
        how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
        super().__init__(f"runner process died ({how})")


class RunnerProcess(asyncio.Protocol):
    """One child process. `run` may be called again when the run before has returned."""

    def __init__(self, setup: Setup, start: RunnerStart, version: FlowVersion) -> None:
        self._setup = setup
        self._start = start
        # What its runs are made of; another version needs another process.
        self.version = version
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._decoder = Decoder()
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._done: asyncio.Future[Conclusion] | None = None
        self._on_progress: Callable[[Progress], None] | None = None
        self._reaping: asyncio.Task[None] | None = None
        self.died = asyncio.Event()
        self._pipes: OutputPipes | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._spill_characters_left = 0
        self._secrets = Secrets()
        self._secrets.set(setup.secrets)
        # The runner has asked to be replaced before the next run.
        self.is_spent = False
        # Its resident memory when it is ready and idle.
        self.idle_bytes = 0

    @property
    def wheels(self) -> WheelSet:
        return self.version.wheels

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> Ready:
        """Start the process; returns when its flows are loaded. RunnerDied if it dies before that."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        output, output_end = os.pipe()
        self._pipes = pipes = OutputPipes()
        try:
            # In the main thread: the parent-death signal is sent when the thread that forked the child ends.
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - forks at once, our own command
                [
                    *(sys.executable, "-m", "fleet_worker.runner.main", str(theirs.fileno()), str(os.getpid())),
                    *map(str, pipes.descriptors),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output_end,
                stderr=output_end,
                pass_fds=[theirs.fileno(), *pipes.descriptors],
                # A process group of its own: Ctrl-C reaches only the agent, and the group can be killed as a whole.
                process_group=0,
                **self._start.options(os.environ, runs_dir=Path(self._setup.runs_dir)),
            )
            orphans.started(self._process.pid)
            if self._setup.describes_wheels:
                # Runs come first. At once: importing costs the most, whatever the wheels do.
                os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS_OF_DESCRIBING)
        except OSError:
            ours.close()
            os.close(output)
            pipes.close()
            raise
        finally:
            theirs.close()
            os.close(output_end)
        await loop.connect_read_pipe(lambda: _OutputLines(self.pid), os.fdopen(output, "rb", buffering=0))
        transport, _ = await loop.create_unix_connection(lambda: self, sock=ours)
        self._transport = transport
        self._send(self._setup)
        return await asyncio.shield(self._ready)

    async def run(self, run: Run, on_progress: Callable[[Progress], None]) -> Conclusion:
        """Execute a run. RunnerDied if the process ends before the run does."""
        assert self._done is None
        if self.died.is_set():
            raise self._death()
        self._done = asyncio.get_running_loop().create_future()
        self._on_progress = on_progress
        self._spill_characters_left = run.log_max_bytes
        self._look_later(were_full=False)
        self._send(run)
        try:
            return await self._done
        except asyncio.CancelledError:
            # The caller was cancelled, but the process would go on with the run.
            self.kill()
            raise
        finally:
            if self._looking is not None:
                self._looking.cancel()
            self._done = None
            self._on_progress = None

    def cancel(self, run_id: str) -> None:
        self._send(Cancel(run_id))

    def kill(self) -> None:
        """Kill the process and all that it started; `died` is set when they are gone."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # The socket may stay open: a child that native code has forked may hold its other end.
        self._end()

    async def stop(self) -> None:
        """Ask an idle runner to exit; kill it if it does not, or if it is still starting."""
        if self._process is None:
            self.died.set()
            return
        self._send(Stop())
        if not await is_set_within(self.died, _STOP_TIMEOUT_SECONDS if self._ready.done() else 0):
            self._end()
            await self.died.wait()

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _on_frame(self, frame: Frame) -> None:
        match frame:
            case Ready():
                if not self._ready.done():
                    self.idle_bytes = resident_bytes(self.pid)
                    self._ready.set_result(frame)
            case Progress():
                if self._on_progress is not None:
                    self._on_progress(frame)
            case Conclusion():
                self.is_spent = frame.spent
                if self._done is not None and not self._done.done():
                    self._done.set_result(frame)
            case _:
                logger.error("runner %d sent an unexpected %s", self.pid, type(frame).__name__)

    def _look_later(self, *, were_full: bool) -> None:
        looking = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_at_pipes, were_full)
        self._looking = looking

    def _look_at_pipes(self, were_full: bool) -> None:
        """Read the run's output in place of a runner that has not for a while."""
        assert self._pipes is not None
        if (are_full := self._pipes.are_full()) and were_full and self._on_progress is not None:
            self._on_progress(
                Progress([event for name, data in self._pipes.read() for event in self._spill(name, data)])
            )
        self._look_later(were_full=are_full)

    def _spill(self, stream: str, data: bytes) -> Iterator[dict[str, Any]]:
        """Events of output that belongs to nobody knows which task."""
        text = self._secrets.mask(data.decode(errors="replace"))[: self._spill_characters_left]
        self._spill_characters_left -= len(text)
        for start in range(0, len(text), LOG_CHUNK_CHARACTERS):
            part = text[start : start + LOG_CHUNK_CHARACTERS]
            yield {"at": time.time(), "kind": EventKind.LOG.value, "task": None, "stream": stream, "text": part}

    def _log_last_words(self) -> None:
        if self._pipes is None:
            return
        for _, data in self._pipes.read():
            lines = _OutputLines(self.pid)
            lines.data_received(self._secrets.mask_bytes(data))
            lines.connection_lost(None)
        self._pipes.close()
        self._pipes = None

    def _end(self) -> None:
        """Kill and reap the process, once: its socket is closed, or should be."""
        if self._reaping is None:
            self._reaping = asyncio.create_task(self._reap())

    async def _reap(self) -> None:
        assert self._process is not None
        # Whatever the cause: nothing of this process group, nor anything else that a run has started, may stay.
        self.kill()
        await asyncio.to_thread(self._process.wait)
        if self._looking is not None:
            self._looking.cancel()
        self._log_last_words()
        orphans.ended(self.pid)
        await orphans.end()
        shutil.rmtree(spare_folder(Path(self._setup.runs_dir), self.pid), ignore_errors=True)
        self.died.set()
        for waiting in (self._ready, self._done):
            if waiting is not None and not waiting.done():
                waiting.set_exception(self._death())
                # There may be no waiter: reading the exception avoids asyncio's warning that it was never retrieved.
                waiting.exception()
        if self._transport is not None:
            self._transport.close()

    def _death(self) -> RunnerDied:
        assert self._process is not None
        return RunnerDied(self._process.returncode or 0)

    def _send(self, frame: Frame) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(frame))


class _OutputLines(asyncio.Protocol):
    """Logs what a runner writes outside of runs: flow files that are loaded, processes that a run left, a crash."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._log(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._log(self._rest)

    def _log(self, line: bytes) -> None:
        if text := line.decode(errors="replace").rstrip():
            # A flow's programs may print anything; a crash report of the interpreter is an error.
            level = logging.ERROR if _CRASH_REPORT.match(text) else logging.DEBUG
            logger.log(level, "runner %d: %s", self._pid, text, extra={"event": LogEvent.RUNNER_OUTPUT})

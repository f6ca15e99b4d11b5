"""One process of a part: started with a parent-death signal, ended together with everything it started."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from fleet_kit.settings import FleetSettings

from ..logs.foreign_lines import ForeignLines
from ..part_processes import MARK, end_processes, mark_of, started_at
from ..stack.environment import environment_of
from ..stack.parts import Part
from . import parent_death


class Child:
    def __init__(
        self, part: Part, stack: str, process: asyncio.subprocess.Process, foreign_lines: ForeignLines
    ) -> None:
        self._part = part
        self._foreign_lines = foreign_lines
        self._stack = stack
        self._process = process
        self.pid = process.pid
        # The kernel's time identifies the process, the clock's is compared with timestamps that it writes.
        self.started_at = started_at(process.pid)
        self.started_at_clock = time.time()

    @classmethod
    async def start(cls, part: Part, *, stack: str, log: Path, log_settings: FleetSettings) -> "Child":
        environment = {
            **environment_of(part.name, os.environ),
            "PYTHONUNBUFFERED": "1",
            **part.env,
            MARK: mark_of(stack, part.name),
        }
        death_signal = str(int(part.death_signal))
        wrapper = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), death_signal]
        # JSON lines (stdout) go straight into the log file; only stderr passes through the launcher.
        foreign_lines, error_output = await ForeignLines.of(part.name, log, log_settings)
        try:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *wrapper,
                    *part.command,
                    env=environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=error_output,
                    # A session of its own: Ctrl-C in the terminal reaches the launcher only.
                    start_new_session=True,
                )
        finally:
            os.close(error_output)
        return cls(part, stack, process, foreign_lines)

    async def wait(self) -> str:
        """Wait until the process and all it started are gone; return how it ended."""
        code = await self._process.wait()
        await self._end_processes()
        return _how(code)

    async def stop(self, hurry: asyncio.Event) -> bool:
        """Send the stop signals of the part in turn, then SIGKILL; return whether it exited without that."""
        for step in self._part.stop:
            if hurry.is_set() or self._process.returncode is not None:
                break
            self._send(step.signal)
            await self._ended_within(step.seconds, hurry)
        went_by_itself = self._process.returncode is not None
        if not went_by_itself:
            self._send(signal.SIGKILL)
        await self._process.wait()
        await self._end_processes()
        return went_by_itself

    async def _ended_within(self, seconds: float, hurry: asyncio.Event) -> None:
        waits = {asyncio.create_task(self._process.wait()), asyncio.create_task(hurry.wait())}
        _, pending = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()

    async def _end_processes(self) -> None:
        await asyncio.to_thread(end_processes, self._stack, self._part.name, self.pid, self.started_at, at_once=True)
        await self._foreign_lines.end()

    def _send(self, what: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(what)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"

"""Runs a program as a child of the agent, which is killed with everything it started when it takes too long."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .descendants import orphans


async def run_program(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    output: Path,
    timeout_seconds: float,
    stdin: Path | None = None,
) -> int:
    """The exit code; what the program says goes to the file `output`. Raises TimeoutError."""
    process = _start(command, cwd, env, output, stdin)
    orphans.started(process.pid)
    waiting = asyncio.create_task(asyncio.to_thread(process.wait))
    try:
        async with asyncio.timeout(timeout_seconds):
            return await asyncio.shield(waiting)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await waiting
        orphans.ended(process.pid)


def _start(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], output: Path, stdin: Path | None
) -> subprocess.Popen[bytes]:
    with output.open("wb") as log, (stdin or Path(os.devnull)).open("rb") as source:
        # In the main thread: the parent-death signal is sent when the thread that forked the child ends.
        # The group can be killed as a whole.
        return subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=source, stdout=log, stderr=log, cwd=cwd, env=env, process_group=0
        )


def end_of(output: Path, characters: int) -> str:
    """The end of what a program has said, as one line."""
    return " ".join(output.read_text(errors="replace").split())[-characters:]

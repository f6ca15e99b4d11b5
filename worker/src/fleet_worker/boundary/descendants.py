"""Processes that flows start: they end with their run, also if they have left its session or lost their parent.

A runner is the subreaper of what its flows start: a process that loses its parent becomes a child of the runner. The
agent is the subreaper of its runners: what a dead one leaves behind becomes a child of the agent.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_SECONDS = 5.0
_LOOK_SECONDS = 0.005


def adopt_orphans() -> None:
    """Let descendants of this process become its children when their own parents end."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> set[int]:
    """Its children, zombies among them."""
    found: set[int] = set()
    try:
        # A look at a few small files; without them every process of the machine has to be looked at.
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    except OSError:
        import psutil  # a runner is smaller without it

        with contextlib.suppress(psutil.Error):
            found = {child.pid for child in psutil.Process(pid).children()}
    return found


def end_children(keep: Collection[int]) -> bool:
    """Of a runner, after a run: end all that it has left behind but these; whether there was any.

    If nothing was ever started, this is a single system call.
    """
    ended = False
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            # Reaps whoever has ended. No flow waits for them any more: its run is over.
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
                pass
        except ChildProcessError:
            return ended
        left = children_of(os.getpid()) - set(keep)
        if not left or time.monotonic() > deadline:
            return ended
        ended = True
        _kill(left)
        time.sleep(_LOOK_SECONDS)


class Orphans:
    """Of an agent: what its dead runners have left behind. Nothing is done in a process that adopts no orphans."""

    def __init__(self) -> None:
        self._own: set[int] | None = None

    def adopt(self) -> None:
        adopt_orphans()
        self._own = set()

    def started(self, pid: int) -> None:
        """Called before the loop does anything else: every other child of this process is a stray."""
        if self._own is not None:
            self._own.add(pid)

    def ended(self, pid: int) -> None:
        if self._own is not None:
            self._own.discard(pid)

    async def end(self) -> None:
        if self._own is None:
            return
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (left := children_of(os.getpid()) - self._own) and time.monotonic() < deadline:
            _kill(left)
            await asyncio.sleep(_LOOK_SECONDS)
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait


# One for the process, as its children are.
strays = Orphans()


def _kill(pids: Collection[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)

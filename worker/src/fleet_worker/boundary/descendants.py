"""Ends the processes that flows start when their run ends, even if they left its session or lost their parent.

A runner is the subreaper of the processes that its flows start: orphans become children of the runner. The agent is
the subreaper of its runners: children of a dead runner become children of the agent.
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
_TIMEOUT_SECONDS = 5.0
_LOOK_SECONDS = 0.005


def adopt_orphans() -> None:
    """Let descendants of this process become its children when their own parents end."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> set[int]:
    """The children of a process, including zombies."""
    found: set[int] = set()
    try:
        # A few small files are read; without them, every process of the machine has to be scanned.
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    except OSError:
        import psutil  # a runner needs less memory without it

        with contextlib.suppress(psutil.Error):
            found = {child.pid for child in psutil.Process(pid).children()}
    return found


def end_children(keep: Collection[int]) -> bool:
    """In a runner, after a run: kill and reap all children but `keep`; True if there were any to kill.

    If nothing was ever started, this is a single system call.
    """
    ended = False
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        try:
            # Reap children that have ended. No flow waits for them any more: its run is over.
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
    """In the agent: children of dead runners. Does nothing in a process that has not called `adopt`."""

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._has_adopted = False

    def adopt(self) -> None:
        adopt_orphans()
        self._has_adopted = True

    def started(self, pid: int) -> None:
        """Register a child before the event loop goes on: `end` kills every child that is not registered."""
        self._own.add(pid)

    def ended(self, pid: int) -> None:
        self._own.discard(pid)

    async def end(self) -> None:
        if not self._has_adopted:
            return
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while (left := children_of(os.getpid()) - self._own) and time.monotonic() < deadline:
            _kill(left)
            await asyncio.sleep(_LOOK_SECONDS)
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait


# One per process, because children belong to the process.
orphans = Orphans()


def _kill(pids: Collection[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)

"""Finds all processes of a part, even after their parent has died, and ends them."""

import contextlib
import os

import psutil

# The environment variable that marks the processes of a part; child processes inherit it.
MARK = "PYOCO_FLEET_PART"

# Start times are computed from the boot time, which moves a little with the clock.
_START_TIME_TOLERANCE_SECONDS = 2.0
_TERM_SECONDS = 3.0
_KILL_SECONDS = 5.0


def mark_of(stack: str, part: str) -> str:
    return f"{stack}/{part}"


def started_at(pid: int) -> float | None:
    """The start time of a process; None if there is no such process."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def is_alive(pid: int, since: float | None) -> bool:
    """Whether the process with this pid and start time still runs; a zombie does not."""
    try:
        process = psutil.Process(pid)
        return _is_near(process.create_time(), since) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def end_processes(stack: str, part: str, leader: int | None, since: float | None, *, at_once: bool) -> bool:
    """Send SIGTERM (not if `at_once`) to all processes of a part, then SIGKILL; return whether there were any."""
    remaining = found = _processes_of(stack, part, leader, since)
    if not at_once:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _, remaining = psutil.wait_procs(found, timeout=_TERM_SECONDS)
    for process in remaining:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(remaining, timeout=_KILL_SECONDS)
    return bool(found)


def _processes_of(stack: str, part: str, leader: int | None, since: float | None) -> list[psutil.Process]:
    """All live processes of a part: those that carry its mark and those in the session it began.

    The mark finds children that left the session; the session finds those that hide their environment (nginx).
    """
    mark = mark_of(stack, part)
    begun = started_at(leader) if leader is not None else None
    # The kernel does not reuse a session's id while it has members, so a dead leader is fine. A live one must be
    # the process that we started.
    session = leader if begun is None or _is_near(begun, since) else None
    return [process for process in psutil.process_iter() if _belongs(process, mark, session)]


def _is_near(begun: float, since: float | None) -> bool:
    return since is None or abs(begun - since) < _START_TIME_TOLERANCE_SECONDS


def _belongs(process: psutil.Process, mark: str, session: int | None) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if session is not None and os.getsid(process.pid) == session:
            return True
        return bool(process.environ().get(MARK) == mark)
    except (psutil.Error, OSError):
        return False

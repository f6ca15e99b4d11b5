"""Pauses processes with SIGSTOP and resumes them."""

import os
import signal
from pathlib import Path

from .waiting import wait_until


def pause_process(pid: int) -> None:
    """Pause a process and wait until every thread has stopped, because SIGSTOP is not immediate."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _is_paused(pid), what=f"every thread of process {pid} paused")


def resume_process(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def _is_paused(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] in "Tt" for stat in threads)

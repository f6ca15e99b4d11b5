"""The memory limit of a run: its flow gets a MemoryError, and the agent measures all of its processes."""

import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from .descendants import children_of

_PAGE_BYTES = resource.getpagesize()
# The share of memory for all slots together; the rest is for the agent and other programs.
_SHARE = 0.8
_LEAST_DEFAULT_BYTES = 1024**3
# Stacks of threads are reserved (8 MiB each) and hardly used.
_STACKS_BYTES = 128 * 1024**2
# When memory runs out, the kernel's OOM killer takes a runner rather than its agent.
_OOM_SCORE = 500
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_SETTING = "PYOCO_RUN_MEMORY_MAX_BYTES"


def default_limit_bytes(slots: int) -> int:
    """Each slot's share of the machine's or container's memory, but at least 1 GiB if there is that much."""
    usable = int(_SHARE * min(_total_bytes()))
    return min(max(usable // slots, _LEAST_DEFAULT_BYTES), usable)


def sentence_about(limit_bytes: int) -> str:
    return (
        f"the run needed more memory than {_SETTING}={limit_bytes} allows; let its flow use less, or set it higher "
        "on the worker (0: no limit)"
    )


class MemoryLimit:
    """In a runner: the limit of its memory, on top of what it has when this is made (idle). 0: no limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes if sys.platform == "linux" else 0
        self._idle_bytes = resident_bytes(os.getpid())
        self._was_met = False
        # RLIMIT_DATA, not the address space: that is reserved generously and says little about use.
        self._data_bytes = _data_bytes() + self._limit_bytes + _STACKS_BYTES
        if self._limit_bytes:
            _limit_data(self._data_bytes)

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Lift the limit for the runner's own work: a C library may abort where Python raises an exception."""
        if self._limit_bytes:
            _limit_data(resource.RLIM_INFINITY)
        try:
            yield
        finally:
            if self._limit_bytes and not self._was_met:
                _limit_data(self._data_bytes)

    def explain(self, error: BaseException) -> str | None:
        """A sentence about the limit if a MemoryError is behind this exception, however the flow has wrapped it."""
        if not self._limit_bytes or not any(isinstance(one, MemoryError) for one in _chain_of(error)):
            return None
        if not self._was_met:
            self._was_met = True
            _limit_data(resource.RLIM_INFINITY)  # reporting the error needs memory, too
        return sentence_about(self._limit_bytes)

    @property
    def is_used_up(self) -> bool:
        """Whether a run has hit the limit, or has left so much memory in use that the next one would hit it soon."""
        if not self._limit_bytes or self._was_met:
            return self._was_met
        # Peak memory is cheap to read; current memory matters only if the peak was high.
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        most_bytes = self._idle_bytes + self._limit_bytes // 2
        return peak_bytes > most_bytes and resident_bytes(os.getpid()) > most_bytes


async def is_over(limit_bytes: int, runner_pid: int, *, idle_bytes: int) -> bool:
    """In the agent: whether a runner and all processes of its run together exceed the limit."""
    most_bytes = idle_bytes + limit_bytes
    pids = list(_process_tree(runner_pid))
    if sum(map(resident_bytes, pids)) <= most_bytes:
        return False
    # Forked processes share most of their memory: the proportional size counts it once, but takes a while to read.
    return await asyncio.to_thread(lambda: sum(map(_proportional_bytes, pids))) > most_bytes


def offer_to_oom_killer() -> None:
    """Raise this process's OOM score. That needs no privilege, and child processes inherit it."""
    with contextlib.suppress(OSError, ValueError):
        file = Path("/proc/self/oom_score_adj")
        file.write_text(str(min(1000, int(file.read_text()) + _OOM_SCORE)))


def resident_bytes(pid: int) -> int:
    """The resident memory of a process; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _proportional_bytes(pid: int) -> int:
    """The proportional set size: shared memory is divided among the processes that share it."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return resident_bytes(pid)


def _process_tree(pid: int) -> Iterator[int]:
    yield pid
    for child in children_of(pid):
        yield from _process_tree(child)


def _total_bytes() -> Iterator[int]:
    """Memory of the machine, and the container's limit if there is one."""
    yield _machine_bytes()
    for file in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            yield int(file.read_text())


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES


def _chain_of(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: list[BaseException | None] = [error]
    while following:
        if (one := following.pop()) is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            following += (one.__cause__, one.__context__)


def _data_bytes() -> int:
    """The memory that RLIMIT_DATA counts: heap, private mappings and stacks of threads, used or not."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def _limit_data(soft_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY and not 0 <= soft_bytes <= hard:
        soft_bytes = hard
    resource.setrlimit(resource.RLIMIT_DATA, (soft_bytes, hard))

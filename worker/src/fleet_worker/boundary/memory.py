"""The memory of a run: a limit that its flow meets as MemoryError, and a look at what all its processes have."""

import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from .descendants import children_of

_PAGE_BYTES = resource.getpagesize()
# A share of the memory, for all slots together: the rest is for the agent and everybody else.
_SHARE = 0.8
_LEAST_DEFAULT_BYTES = 1024**3
# Stacks of threads are reserved (8 MiB each) and hardly used.
_STACKS_BYTES = 128 * 1024**2
# When the machine has none left, the kernel ends a runner and not its agent.
_OOM_SCORE = 500
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_SETTING = "PYOCO_RUN_MEMORY_MAX_BYTES"


def default_limit_bytes(slots: int) -> int:
    """Each slot's share of the machine or the container; not less than 1 GiB, where there is as much."""
    usable = int(_SHARE * min(_total_bytes()))
    return min(max(usable // slots, _LEAST_DEFAULT_BYTES), usable)


def sentence_about(limit_bytes: int) -> str:
    return (
        f"the run needed more memory than {_SETTING}={limit_bytes} allows; let its flow use less, or set it higher "
        "on the worker (0: no limit)"
    )


class MemoryLimit:
    """Of a runner: how much it may have besides what it has when it is idle, as it is now. 0: as much as there is."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes if sys.platform == "linux" else 0
        self._idle_bytes = resident_bytes(os.getpid())
        self._was_met = False
        # Not the address space: that is reserved generously and tells little.
        self._data_bytes = _data_bytes() + self._limit_bytes + _STACKS_BYTES
        if self._limit_bytes:
            _limit_data(self._data_bytes)

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """For what the runner does itself: a library in C may end the process where Python has an exception."""
        if self._limit_bytes:
            _limit_data(resource.RLIM_INFINITY)
        try:
            yield
        finally:
            if self._limit_bytes and not self._was_met:
                _limit_data(self._data_bytes)

    def explain(self, error: BaseException) -> str | None:
        """A sentence about the limit if that is what the flow has met, whatever it has made of it."""
        if not self._limit_bytes or not any(isinstance(one, MemoryError) for one in _chain_of(error)):
            return None
        if not self._was_met:
            self._was_met = True
            _limit_data(resource.RLIM_INFINITY)  # telling of it needs memory, too
        return sentence_about(self._limit_bytes)

    @property
    def is_used_up(self) -> bool:
        """A run has met the limit, or left so much behind that the next one would meet it soon."""
        if not self._limit_bytes or self._was_met:
            return self._was_met
        # What it once had is known at once; what it has now only matters if that was much.
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        most_bytes = self._idle_bytes + self._limit_bytes // 2
        return peak_bytes > most_bytes and resident_bytes(os.getpid()) > most_bytes


async def is_over(limit_bytes: int, runner_pid: int, *, idle_bytes: int) -> bool:
    """Of an agent: whether a runner and all that its run has started have more together than they may."""
    most_bytes = idle_bytes + limit_bytes
    pids = list(_family_of(runner_pid))
    if sum(map(resident_bytes, pids)) <= most_bytes:
        return False
    # Forked processes share most of their memory: counted once each, which takes a while.
    return await asyncio.to_thread(lambda: sum(map(_proportional_bytes, pids))) > most_bytes


def offer_to_oom_killer() -> None:
    """Everybody may do this to himself, and what he starts inherits it."""
    with contextlib.suppress(OSError, ValueError):
        file = Path("/proc/self/oom_score_adj")
        file.write_text(str(min(1000, int(file.read_text()) + _OOM_SCORE)))


def resident_bytes(pid: int) -> int:
    """What the process has in memory; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _proportional_bytes(pid: int) -> int:
    """Memory that several processes share counts for each of them in part."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return resident_bytes(pid)


def _family_of(pid: int) -> Iterator[int]:
    yield pid
    for child in children_of(pid):
        yield from _family_of(child)


def _total_bytes() -> Iterator[int]:
    """Of the machine, and of the container if it has a limit."""
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
    """What counts for RLIMIT_DATA: heap, private mappings and stacks of threads, used or not."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def _limit_data(soft_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY and not 0 <= soft_bytes <= hard:
        soft_bytes = hard
    resource.setrlimit(resource.RLIMIT_DATA, (soft_bytes, hard))

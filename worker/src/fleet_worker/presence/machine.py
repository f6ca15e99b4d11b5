"""Host, CPU and memory of a worker: its agent, the runners and all processes that they have started."""

import os
import platform
import socket
import time
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version

import psutil

from fleet_contracts.worker_record import Machine


class MachineGauge:
    """`read` scans all processes of the machine: call it rarely, and outside of the event loop."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        # CPU seconds of each of our processes at the last `read`.
        self._used: dict[psutil.Process, float] = {}
        self._looked_at: float | None = None

    @cached_property
    def _facts(self) -> Machine:
        return Machine(
            host=socket.gethostname(),
            pid=os.getpid(),
            platform=platform.platform(),
            python_version=platform.python_version(),
            pyoco_version=_version("pyoco"),
            fleet_version=_version("pyoco-fleet-worker"),
            cpu_count=os.cpu_count(),
            memory_total_bytes=psutil.virtual_memory().total,
        )

    def read(self) -> Machine:
        used: dict[psutil.Process, float] = {}
        memory = 0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    memory += process.memory_info().rss
            except psutil.Error:
                continue  # it has just ended
            used[process] = times.user + times.system
        now = time.monotonic()
        percent = None
        if self._looked_at is not None:
            seconds = sum(spent - self._used.get(process, 0.0) for process, spent in used.items())
            percent = round(100.0 * seconds / max(now - self._looked_at, 0.001), 1)
        self._used, self._looked_at = used, now
        return self._facts.model_copy(update={"cpu_percent": percent, "memory_bytes": memory})


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

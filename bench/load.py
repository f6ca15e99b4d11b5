"""The load: clients that ask as fast as they are answered, in a process of their own."""

import asyncio
import json
import math
import multiprocessing
import resource
import signal
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import uvloop

from fleet_contracts.status import RunStatus

from .connection import Connection, request
from .errors import BenchFailed

T = TypeVar("T")

# Between two looks at a run that has not ended: a client in a hurry, but not one that only burns the CPU.
_LOOK_AGAIN_SECONDS = 0.001
_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Outcome:
    answers: int
    seconds: float
    latencies: list[float]

    @property
    def per_second(self) -> float:
        return self.answers / self.seconds

    @property
    def p50_ms(self) -> float:
        return 1000 * statistics.median(self.latencies)

    def percentile_ms(self, share: float) -> float:
        """So long or shorter took this share of the answers; 1.0 is the longest."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def hammer(port: int, sent: bytes, *, clients: int, seconds: float, count: int | None = None) -> Outcome:
    """`clients` connections send the same request until the time is up or `count` answers are there."""
    return run_in_loop(_hammer(port, sent, clients=clients, seconds=seconds, count=count))


def end_to_end(port: int, submits: Sequence[bytes], *, runs: int) -> list[float]:
    """Seconds from sending a submit to seeing its run COMPLETED, for `runs` runs one after another."""
    return run_in_loop(_end_to_end(port, submits, runs=runs))


async def _hammer(port: int, sent: bytes, *, clients: int, seconds: float, count: int | None) -> Outcome:
    connections = await asyncio.gather(*(Connection.open(port) for _ in range(clients)))
    latencies: list[float] = []
    left = count if count is not None else -1
    begun = time.perf_counter()
    deadline = begun + seconds

    async def client(connection: Connection) -> None:
        nonlocal left
        # Every client asks at least once, however slow the answer: there is always a figure.
        while left != 0:
            left -= 1
            asked = time.perf_counter()
            await connection.ask(sent)
            answered = time.perf_counter()
            latencies.append(answered - asked)
            if answered >= deadline:
                return

    await asyncio.gather(*(client(connection) for connection in connections))
    took = time.perf_counter() - begun
    for connection in connections:
        connection.close()
    return Outcome(len(latencies), took, latencies)


async def _end_to_end(port: int, submits: Sequence[bytes], *, runs: int) -> list[float]:
    connection = await Connection.open(port)
    took = []
    for number in range(runs):
        begun = time.perf_counter()
        run_id = json.loads(await connection.ask(submits[number % len(submits)]))["run_id"]
        look = request("GET", f"/runs/{run_id}")
        while not (status := RunStatus(json.loads(await connection.ask(look))["status"])).is_terminal:
            if time.perf_counter() - begun > _TIMEOUT_SECONDS:
                raise BenchFailed(f"a tiny run is still {status} after {_TIMEOUT_SECONDS:g} s")
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        took.append(time.perf_counter() - begun)
        if status is not RunStatus.COMPLETED:
            raise BenchFailed(f"a tiny run ended {status}")
    connection.close()
    return took


class LoadProcess:
    """Calls functions of this package in another process, so that measuring does not slow the measured down."""

    def __init__(self) -> None:
        # Ctrl-C is for this process, which ends the other one: that one is born ignoring it.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._pool = multiprocessing.get_context("spawn").Pool(1, initializer=raise_open_files_limit)
        signal.signal(signal.SIGINT, handler)

    def __enter__(self) -> "LoadProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def call(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        return self._pool.apply(work, arguments, options)


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def raise_open_files_limit() -> None:
    """Thousands of connections are more than many systems allow a process by default."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

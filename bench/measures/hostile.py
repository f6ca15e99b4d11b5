"""How long another client's reads take while four clients send bodies that are meant to keep the service busy."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from ..connection import Connection, request
from ..errors import BenchFailed
from ..figures import Figure
from ..load import LoadProcess, Outcome, hammer, run_in_loop
from ..session import Session

_CLIENTS = 4
_UNKNOWN_KEYS = 1_450_000
# The attack begins so much before the reads, and ends so much after them.
_AROUND_SECONDS = 1.0
_LONG_NUMBERS, _LONG_DIGITS = 3_400, 4_300
# What is promised of the reads of another client meanwhile.
_P99_LIMIT_MS = 100.0
_READS = {"list": "/runs?limit=20", "worker list": "/workers"}


def measure_hostile(session: Session) -> list[Figure]:
    """Ours alone: the peer has no batches."""
    port, seconds = session.ours.port, session.effort.hostile_seconds
    keys = dict.fromkeys((f"{number:x}" for number in range(_UNKNOWN_KEYS)), 1)
    long_numbers = {"flow_name": "x", "params": {"numbers": [10 ** (_LONG_DIGITS - 1)] * _LONG_NUMBERS}}
    bodies = {
        "of unknown keys": request("POST", "/runs/batch", keys),
        "of long numbers": request("POST", "/runs/batch", {"runs": [long_numbers]}),
    }
    figures = []
    with LoadProcess() as attackers, ThreadPoolExecutor(1) as beside:
        for read, path in _READS.items():
            sent = request("GET", path)
            figures += _shares(f"{read}, alone", session.load.call(hammer, port, sent, clients=1, seconds=seconds))
            for kind, hostile in bodies.items():
                lasting = seconds + 2 * _AROUND_SECONDS
                attack = beside.submit(attackers.call, send_hostile_bodies, port, hostile, seconds=lasting)
                time.sleep(_AROUND_SECONDS)
                busy = session.load.call(hammer, port, sent, clients=1, seconds=seconds)
                refused = attack.result()
                beside_them = f"{read}, beside {_CLIENTS} clients with bodies {kind}"
                figures += _shares(beside_them, busy, p99_limit_ms=_P99_LIMIT_MS)
                figures.append(Figure(f"bodies {kind} refused meanwhile", "per s", refused / lasting, None))
    return figures


def _shares(name: str, seen: Outcome, *, p99_limit_ms: float | None = None) -> list[Figure]:
    return [
        Figure(f"{name}, p50", "ms", seen.percentile_ms(0.5), None),
        Figure(f"{name}, p99", "ms", seen.percentile_ms(0.99), None, limit=p99_limit_ms),
        Figure(f"{name}, max", "ms", seen.percentile_ms(1.0), None),
    ]


def send_hostile_bodies(port: int, sent: bytes, *, seconds: float) -> int:
    """How many of these requests were refused in this time."""
    return run_in_loop(_send(port, sent, seconds=seconds))


async def _send(port: int, sent: bytes, *, seconds: float) -> int:
    deadline = time.perf_counter() + seconds

    async def client() -> int:
        refused = 0
        while time.perf_counter() < deadline:
            connection = await Connection.open(port)
            try:
                await connection.ask(sent)
            except BenchFailed:
                refused += 1  # whatever the answer: it was none that a good batch gets
            else:
                raise BenchFailed("a hostile body was accepted")
            finally:
                connection.close()
        return refused

    return sum(await asyncio.gather(*(client() for _ in range(_CLIENTS))))

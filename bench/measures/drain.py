"""How fast workers empty a queue, and how often KV is written for that."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack

from nats.aio.client import Client

from fleet_contracts.names import WireNames, kv_stream

from ..connection import submit_request
from ..errors import BenchFailed
from ..figures import Figure
from ..load import LoadProcess, hammer
from ..session import Session
from ..sides import Process, Side

_NAMES = WireNames()
_LOOK_SECONDS = 0.02
_TIMEOUT_SECONDS = 120.0
# The peer still writes snapshots some time after a run has ended.
_QUIET_SECONDS = 1.0


def measure_drain(session: Session) -> list[Figure]:
    figures = []
    for workers in (1, 2):

        def rate(side: Side, workers: int = workers) -> float:
            return _drain(session, side, runs=session.effort.drain_runs, workers=workers)

        title = f"drain {session.effort.drain_runs:,} runs, {workers} worker{'s' if workers > 1 else ''}"
        figures.append(session.compare(title, "per s", rate, needs_worker=True, rounds=session.effort.drain_rounds))
    return figures


def measure_writes(session: Session) -> list[Figure]:
    runs = session.effort.writes_runs

    def writes_per_run(side: Side) -> float:
        before = side.wire.use(_kv_writes)
        _drain(session, side, runs=runs, workers=1)
        return (side.wire.use(_kv_writes_once_quiet) - before) / runs

    return [session.compare("KV writes per tiny run", "writes", writes_per_run, needs_worker=True, rounds=1)]


def _drain(session: Session, side: Side, *, runs: int, workers: int) -> float:
    """Runs per second, from the first that is done to the last."""
    tag = session.new_tag()
    with ExitStack() as stack:
        started = [stack.enter_context(side.worker(tag)) for _ in range(workers)]
        return drain(side, session.load, started, tag=tag, runs=runs)


def drain(side: Side, load: LoadProcess, workers: Sequence[Process], *, tag: str, runs: int) -> float:
    """Runs per second of workers that run already: they are held back until all runs are queued."""
    for worker in workers:
        worker.pause()
    sent = submit_request("tiny", tag=tag)
    load.call(hammer, side.port, sent, clients=16, seconds=_TIMEOUT_SECONDS, count=runs)
    for worker in workers:
        worker.resume()
    return side.wire.use(lambda client: _watch_queue(client, tag, runs))


async def _watch_queue(client: Client, tag: str, runs: int) -> float:
    """A job leaves the work queue when its run has ended and the worker has acknowledged it."""
    subject = _NAMES.work_subject(tag)
    first: tuple[float, int] | None = None
    deadline = time.perf_counter() + _TIMEOUT_SECONDS
    while True:
        info = await client.jetstream().stream_info(_NAMES.work_stream, subjects_filter=subject)
        now = time.perf_counter()
        left = (info.state.subjects or {}).get(subject, 0)
        if first is None and left < runs:
            first = (now, left)
        if left == 0:
            break
        if now > deadline:
            raise BenchFailed(f"{left} of {runs} queued runs are left after {_TIMEOUT_SECONDS:g} s")
        await asyncio.sleep(_LOOK_SECONDS)
    assert first is not None
    since, left_then = first
    if left_then == 0:
        raise BenchFailed(f"{runs} runs were done between two looks: queue more")
    return left_then / (now - since)


async def _kv_writes(client: Client) -> int:
    """Every write takes one number of the bucket's stream."""
    info = await client.jetstream().stream_info(kv_stream(_NAMES.runs_kv_bucket))
    return info.state.last_seq


async def _kv_writes_once_quiet(client: Client) -> int:
    writes = await _kv_writes(client)
    while True:
        await asyncio.sleep(_QUIET_SECONDS)
        before, writes = writes, await _kv_writes(client)
        if writes == before:
            return writes

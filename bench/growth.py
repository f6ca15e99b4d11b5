"""Whether runs-api's memory grows with the runs that it has seen: run `python -m bench.growth`."""

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psutil

from .connection import request
from .load import LoadProcess, hammer, raise_open_files_limit
from .measures.drain import drain
from .sides import Ours

_TAG = "growth"
_WORKERS = 2
_READ_SECONDS = 2.0
# KV lets go of what has ended while the next runs come, as it does in a fleet that has run for long.
_ENV = {"PYOCO_RUNS_KV_RETENTION_SEC": "5"}


def main() -> None:
    options = _options()
    raise_open_files_limit()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-growth-")))
        load = stack.enter_context(LoadProcess())
        ours = stack.enter_context(Ours(folder / "ours", env=_ENV))
        workers = [stack.enter_context(ours.worker(_TAG)) for _ in range(_WORKERS)]
        service = psutil.Process(ours.pids()["runs-api"])

        def say_memory(runs: int) -> None:
            print(f"after {runs:>7,} runs: {service.memory_info().rss / 2**20:.0f} MiB", flush=True)

        say_memory(0)
        for number in range(1, options.rounds + 1):
            drain(ours, load, workers, tag=_TAG, runs=options.runs)
            for path in ("/runs?limit=200", "/runs?limit=200&status=COMPLETED&include=full", "/workers", "/metrics"):
                load.call(hammer, ours.port, request("GET", path), clients=4, seconds=_READ_SECONDS)
            say_memory(number * options.runs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="tiny runs in each round")
    parser.add_argument("--rounds", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()

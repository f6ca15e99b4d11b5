"""`./fleet bench`: what does it cost, beside what it cost with less?"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import create_engine

from fleet_testkit.filling import fill_ledger
from fleet_testkit.stack import Stack

_ROUNDS = 200
_SIZES = (1_000, 10_000, 100_000)


@dataclass(frozen=True)
class Figure:
    """A latency with few runs in the ledger beside the same with many; `ratio` 1 means that size costs nothing."""

    name: str
    unit: str
    few: float
    many: float
    ratio: float


def measure_lists(rounds: int) -> list[Figure]:
    """Lists and metrics through the gateway, from stacks whose ledgers differ only in size."""
    paths = {"list 50": "/runs?limit=50", "list failed": "/runs?status=FAILED&limit=50", "metrics": "/metrics"}
    with tempfile.TemporaryDirectory(prefix="bench") as folder, ExitStack() as stacks:
        by_size: dict[int, Stack] = {}
        for size in _SIZES:
            print(f"bench: starting a stack with {size} runs in its ledger", file=sys.stderr, flush=True)
            stack = stacks.enter_context(Stack(Path(folder) / str(size), "--workers", "0"))
            engine = create_engine(f"sqlite:///{stack.data_dir}/runs.db")
            with engine.begin() as connection:
                fill_ledger(connection, size)
            engine.dispose()
            by_size[size] = stack
        seconds: dict[tuple[str, int], list[float]] = {(name, size): [] for name in paths for size in _SIZES}
        for _ in range(rounds):
            # Interleaved: whatever else the machine does, it does to all of them.
            for name, path in paths.items():
                for size, stack in by_size.items():
                    begun = time.perf_counter()
                    answer = stack.client.get(path)
                    seconds[name, size].append(time.perf_counter() - begun)
                    answer.raise_for_status()
    figures = []
    for name in paths:
        few = 1000 * statistics.median(seconds[name, _SIZES[0]])
        for size in _SIZES[1:]:
            many = 1000 * statistics.median(seconds[name, size])
            title = f"{name}, {_SIZES[0]} → {size} runs"
            figures.append(Figure(title, "ms p50", round(few, 2), round(many, 2), round(few / many, 2)))
    return figures


MEASUREMENTS: dict[str, Callable[[int], list[Figure]]] = {"lists": measure_lists}


def main() -> None:
    parser = argparse.ArgumentParser(prog="./fleet bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", choices=sorted(MEASUREMENTS), help="measure only this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    figures: list[Figure] = []
    for name, measure in MEASUREMENTS.items():
        if options.only in (None, name):
            figures += measure(_ROUNDS // 5 if options.quick else _ROUNDS)
    width = max(len(figure.name) for figure in figures)
    print(f"{'what':<{width}}  {'few':>8}  {'many':>8}  unit     ratio")
    for figure in figures:
        print(
            f"{figure.name:<{width}}  {figure.few:>8.2f}  {figure.many:>8.2f}  {figure.unit:<7}  {figure.ratio:>5.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2))


if __name__ == "__main__":
    main()

"""`python -m bench.ablation WITH WITHOUT`: two checkouts of the fleet, measured in turns.

For each measure: the medians of both sides, their spread, how many times better the first one is, and the CPU time of
the processes concerned, which other work on the machine disturbs least.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from fleet_launcher.settings import LauncherSettings

from .errors import BenchFailed
from .figures import significant
from .progress import say

_STOP_SECONDS = 60.0
# Of these less is better, of all others (rates per second) more.
_TIMES_MS = ("e2e",)


@dataclass
class Series:
    """The values of one measure on one side, a value for each round."""

    values: list[float] = field(default_factory=list)
    # CPU seconds for 1,000 operations, by process.
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def add(self, value: float, cpu: dict[str, float]) -> None:
        self.values.append(value)
        for name, seconds in cpu.items():
            self.cpu.setdefault(name, []).append(seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> str:
        return f"{self.median:.4g} ({min(self.values):.4g} to {max(self.values):.4g})"

    def cpu_of(self, process: str) -> float:
        return statistics.median(self.cpu[process])

    @property
    def cpu_of_all(self) -> float:
        return sum(self.cpu_of(process) for process in self.cpu)


class CheckoutSide:
    """The stack of a checkout, in a process of that checkout's own Python. This bench measures both."""

    def __init__(self, checkout: Path, folder: Path, database: str) -> None:
        python = checkout.absolute() / ".venv" / "bin" / "python"
        if not python.exists():
            raise BenchFailed(f"{checkout} has no environment; run `./fleet run true` there first")
        self._process = subprocess.Popen(
            [python, "-m", "bench.one_side", str(folder), database],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A session of its own: Ctrl-C reaches this process only, which ends both sides.
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        self.measures: list[str] = self._read()["measures"]
        return self

    def __exit__(self, *_: object) -> None:
        _stream(self._process.stdin).close()
        self._process.wait(_STOP_SECONDS)

    def measure(self, name: str) -> tuple[float, dict[str, float]]:
        stdin = _stream(self._process.stdin)
        stdin.write(f"{name}\n")
        stdin.flush()
        answer = self._read()
        return answer["value"], answer["cpu"]

    def _read(self) -> dict[str, Any]:
        line = _stream(self._process.stdout).readline()
        if not line:
            raise BenchFailed("a side has ended by itself; it says why above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def compare(checkouts: Sequence[Path], *, database: str, rounds: int, only: Sequence[str]) -> dict[str, list[Series]]:
    """By measure: a series for each checkout."""
    scratch = LauncherSettings.load().data_dir.absolute() / "bench"
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        sides = [CheckoutSide(one, Path(folder) / str(number), database) for number, one in enumerate(checkouts)]
        for side in sides:
            stack.enter_context(side)
        names = [name for name in sides[0].measures if not only or name in only]
        seen = {name: [Series() for _ in sides] for name in names}
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for name in names:
                # Each side goes first in every other round.
                for place in sorted(range(len(sides)), reverse=number % 2 == 1):
                    seen[name][place].add(*sides[place].measure(name))
        return seen


def ratio(name: str, with_: Series, without: Series) -> float:
    """More than 1: the first side is better."""
    return without.median / with_.median if name in _TIMES_MS else with_.median / without.median


def table(seen: dict[str, list[Series]]) -> str:
    lines = [
        "| measure | with | without | ratio | CPU s per 1,000, with | without | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (with_, without) in seen.items():
        unit = "ms" if name in _TIMES_MS else "per s"
        processes = sorted(with_.cpu, key=with_.cpu_of, reverse=True)[:3]
        cpu = [
            f"{side.cpu_of_all:.3g} ({', '.join(f'{one} {side.cpu_of(one):.3g}' for one in processes)})"
            for side in (with_, without)
        ]
        lines.append(
            f"| {name}, {unit} | {with_.spread} | {without.spread} | {ratio(name, with_, without):.2f} "
            f"| {cpu[0]} | {cpu[1]} | {without.cpu_of_all / with_.cpu_of_all:.2f} |"
        )
    return "\n".join(lines)


def document(seen: dict[str, list[Series]]) -> str:
    return json.dumps(
        {
            name: [
                {
                    "values": [significant(value) for value in side.values],
                    "cpu_seconds_per_1000": {process: significant(side.cpu_of(process)) for process in side.cpu},
                }
                for side in sides
            ]
            for name, sides in seen.items()
        },
        indent=2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ablation", description=__doc__)
    parser.add_argument("with_", type=Path, metavar="WITH", help="a checkout with its .venv")
    parser.add_argument("without", type=Path, metavar="WITHOUT", help="another one, mostly the same less one thing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--database", choices=("sqlite", "postgresql", "distant-postgresql"), default="sqlite")
    parser.add_argument("--only", action="append", default=[], metavar="MEASURE", help="may repeat")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value there, too")
    options = parser.parse_args()
    begun = time.monotonic()
    try:
        seen = compare(
            [options.with_, options.without], database=options.database, rounds=options.rounds, only=options.only
        )
    except BenchFailed as error:
        raise SystemExit(f"bench: {error}") from error
    print(table(seen))
    if options.json is not None:
        options.json.write_text(document(seen))
    say(f"done in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()

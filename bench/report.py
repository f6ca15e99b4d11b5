"""How figures are shown: a table, a JSON document, a chart."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .errors import BenchFailed
from .figures import Figure

_HEADINGS = ("what", "unit", "ours", "peer", "ratio")
_CHART_SCRIPT = Path(__file__).with_name("chart.py")


def table(figures: Sequence[Figure]) -> str:
    rows = [_HEADINGS, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = []
    for row in rows:
        words = (cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True))
        numbers = (cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True))
        lines.append("  ".join((*words, *numbers)))
    return "\n".join(lines)


def document(figures: Sequence[Figure]) -> str:
    return json.dumps([figure.as_json() for figure in figures], indent=2) + "\n"


def missed_limits(figures: Sequence[Figure]) -> list[str]:
    """A sentence for each figure that is not under its limit."""
    return [
        f"FAILED: {figure.name} is {number(figure.ours)} {figure.unit}, and must stay under {number(figure.limit)}"
        for figure in figures
        if figure.misses_limit
    ]


def draw_chart(figures_file: Path, chart: Path, *, python: str) -> None:
    """Drawn by the peer's Python, which has a library for it."""
    done = subprocess.run(
        [python, str(_CHART_SCRIPT), str(figures_file), str(chart)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchFailed(f"the chart could not be drawn: {done.stderr.strip().splitlines()[-1:]}")


def _row(figure: Figure) -> tuple[str, str, str, str, str]:
    ratio = figure.ratio
    return (
        figure.name,
        figure.unit,
        number(figure.ours),
        number(figure.peer),
        "–" if ratio is None else f"{number(ratio)}×",
    )


def number(value: float | None) -> str:
    """As many decimals as its size is worth."""
    if value is None:
        return "–"
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f}"

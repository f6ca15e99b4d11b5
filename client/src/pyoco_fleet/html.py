"""What notebooks show: HTML of names and values."""

from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape

_COLOURS = {"COMPLETED": "#1a7f37", "FAILED": "#cf222e", "RUNNING": "#0969da", "CANCELLED": "#6e7781"}


def status(name: str) -> str:
    return f'<b style="color:{_COLOURS.get(name, "#9a6700")}">{escape(name)}</b>'


def table(rows: Mapping[str, str]) -> str:
    """Values are HTML already."""
    lines = (
        f'<tr><th style="text-align:left">{escape(name)}</th><td>{cell}</td></tr>' for name, cell in rows.items()
    )
    return f"<table>{''.join(lines)}</table>"


def of_fields(fields: Iterable[tuple[str, object]]) -> str:
    return table({name: escape(value if isinstance(value, str) else repr(value)) for name, value in fields})


def of_lines(lines: Iterable[str]) -> str:
    return "<br>".join(map(escape, lines))


def of_group(total: int, ended: Mapping[str, int]) -> str:
    counts = Counter(ended)
    rows = {"runs": str(total), "known to have ended": str(sum(counts.values()))}
    return table(rows | {name: f"{status(name)} {count}" for name, count in sorted(counts.items())})

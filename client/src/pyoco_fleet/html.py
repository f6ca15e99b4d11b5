"""What notebooks show of runs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape

from .models import RunState, clock

_COLOURS = {"COMPLETED": "#1a7f37", "FAILED": "#cf222e", "RUNNING": "#0969da", "CANCELLED": "#6e7781"}


def status(name: str) -> str:
    return f'<b style="color:{_COLOURS.get(name, "#9a6700")}">{escape(name)}</b>'


def table(rows: Mapping[str, str]) -> str:
    """Values are HTML already."""
    lines = (
        f'<tr><th style="text-align:left">{escape(name)}</th><td>{cell}</td></tr>' for name, cell in rows.items()
    )
    return f"<table>{''.join(lines)}</table>"


def of_run(run_id: str, state: RunState | None) -> str:
    rows = {"run": f"<code>{escape(run_id)}</code>"}
    if state is None:
        return table(rows | {"status": "not looked at yet"})
    rows |= {"flow": escape(state.flow_name or ""), "status": status(state.status)}
    if state.start_time and state.end_time:
        rows["took"] = f"{state.end_time - state.start_time:.2f} s"
    if state.waiting_detail:
        rows["waits"] = escape(state.waiting_detail)
    if state.error:
        rows["error"] = f"<code>{escape(state.error)}</code>"
    if state.tasks:
        rows["tasks"] = " · ".join(f"{escape(name)} {status(at)}" for name, at in state.tasks.items())
    if state.updated_at:
        rows["as of"] = clock(state.updated_at)
    return table(rows)


def of_fields(fields: Iterable[tuple[str, object]]) -> str:
    return table({name: escape(value if isinstance(value, str) else repr(value)) for name, value in fields})


def of_lines(lines: Iterable[str]) -> str:
    return "<br>".join(map(escape, lines))


def of_group(total: int, ended: Mapping[str, int]) -> str:
    counts = Counter(ended)
    rows = {"runs": str(total), "known to have ended": str(sum(counts.values()))}
    return table(rows | {name: f"{status(name)} {count}" for name, count in sorted(counts.items())})

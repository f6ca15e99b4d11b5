"""The tasks of a run as rows of a table."""

from collections.abc import Mapping
from typing import Any

from .output import Column, Item, Table
from .texts import t
from .times import duration


def task_rows(run: Item, *, now: float | None = None) -> list[dict[str, Any]]:
    """The tasks in the order in which they began; the length of one that is running is that until `now`."""
    records: Mapping[str, Any] = run.get("task_records") or {}
    rows = []
    for name, state in (run.get("tasks") or {}).items():
        record = records.get(name) or {}
        begun, ended = record.get("started_at"), record.get("ended_at")
        length = (record.get("duration_ms") or 0) / 1000 if record.get("duration_ms") is not None else None
        if length is None and begun is not None:
            end = ended if ended is not None else now
            length = None if end is None else end - begun
        rows.append({**record, "task": name, "state": state, "begun": begun, "length": length})
    return sorted(rows, key=lambda row: (row["begun"] is None, row["begun"] or 0.0))


def task_table(rows: list[dict[str, Any]]) -> Table:
    return Table(
        rows,
        [
            Column(t("column.task"), lambda row: row["task"]),
            Column(t("column.state"), lambda row: row["state"], is_state=True),
            Column(t("column.duration"), lambda row: duration(row["length"]), is_number=True),
            Column(t("column.info"), _task_info),
        ],
    )


def _task_info(row: Item) -> object:
    if row.get("error"):
        return row["error"]
    count = row.get("iteration_count")
    return t("tasks.iterations", count=count) if count else row.get("output") or ""

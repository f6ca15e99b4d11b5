"""A run while it works: on a terminal its tasks and below them its last lines, elsewhere a line for each change."""

import threading
import time
from collections import deque
from typing import Any

from .output import Item, Output, colour_of, colourless, printable, rich_table
from .session import TERMINAL
from .task_table import task_rows, task_table
from .texts import t
from .times import duration

_KEPT_LINES = 1000
_REFRESHES_PER_SECOND = 8
# Rows of the terminal that are neither tasks nor output.
_OTHER_ROWS = 4
_FEWEST_LINES = 3


class LiveView:
    """Draws itself anew several times a second, so that durations go on."""

    def __init__(self, out: Output, run_id: str) -> None:
        from rich.live import Live

        self._out = out
        self._run: Item = {"run_id": run_id, "status": "PENDING", "tasks": {}}
        self._begun = time.time()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._line_count = 0
        # Between this machine's clock and that of the worker.
        self._skew = 0.0
        self._has_ended = False
        self._lock = threading.Lock()
        self._console = out.console()
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=_REFRESHES_PER_SECOND,
            vertical_overflow="crop",
        )

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._has_ended = True
        self._live.stop()

    def show_run(self, run: Item) -> None:
        with self._lock:
            self._run = run
            self._skew = time.time() - float(run.get("updated_at") or time.time())

    def show_line(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)
            self._line_count += 1

    def _draw(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        with self._lock:
            rows = task_rows(self._run, now=time.time() - max(0.0, self._skew if self._skew < 1 else 0.0))
            lines = list(self._lines)
            parts: list[Any] = [self._headline()]
            room = 10**9 if self._has_ended else max(_FEWEST_LINES, self._console.height - _OTHER_ROWS)
            shown = _most_telling(rows, max(1, room // 2))
            if rows:
                parts.append("")
                parts.append(rich_table(task_table(shown)))
            if len(shown) < len(rows):
                parts.append(Text(t("follow.more_tasks", count=len(rows) - len(shown)), style="dim"))
            free = max(_FEWEST_LINES, room - len(shown) - 2)
            last = lines[-free:]
            if last:
                parts.append("")
            if len(last) < self._line_count and self._has_ended:
                parts.append(Text(t("follow.earlier", count=self._line_count - len(last)), style="dim"))
            parts += [Text.from_ansi(printable(line), no_wrap=not self._has_ended) for line in last]
            return Group(*parts)

    def _headline(self) -> Any:
        from rich.text import Text

        run = self._run
        status = str(run["status"])
        line = Text.assemble(
            (str(run.get("flow_name") or ""), "bold"),
            "  ",
            (str(run["run_id"]), "dim"),
            "  ",
            (status, colour_of(status)),
        )
        begun, ended = run.get("start_time"), run.get("end_time")
        if status in TERMINAL and begun and ended:
            line.append(f"  {duration(ended - begun)}")
        elif status not in TERMINAL:
            line.append(f"  {duration(time.time() - self._begun)}")
        if (run.get("attempt") or 0) > 1:
            line.append("  " + t("logs.attempt_number", number=run["attempt"]))
        waits = run.get("waiting_detail")
        if waits and status == "PENDING":
            line.append(f"\n{printable(str(waits))}", style="yellow")
        return line


def _most_telling(rows: list[dict[str, Any]], room: int) -> list[dict[str, Any]]:
    """If not all tasks fit: those that failed or run first, then the latest."""
    if len(rows) <= room:
        return rows
    kept = sorted(rows, key=lambda row: (row["state"] not in ("FAILED", "RUNNING"), -(row["begun"] or 0.0)))[:room]
    return [row for row in rows if row in kept]


class PlainView:
    """A line on stderr for every change and every line of output."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._states: dict[str, str] = {}

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show_run(self, run: Item) -> None:
        for row in task_rows(run):
            if row["state"] not in ("PENDING", self._states.get(row["task"])):
                self._states[row["task"]] = row["state"]
                length = f" {duration(row['length'])}" if row["length"] is not None else ""
                self._out.note(f"{row['task']} {row['state']}{length}")
        if self._states.get("") != run["status"]:
            self._states[""] = str(run["status"])
            self._out.note(f"{run['run_id']} {run['status']}")

    def show_line(self, line: str) -> None:
        self._out.note(line if self._out.colour else colourless(line))

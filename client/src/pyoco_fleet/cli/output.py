"""Output of commands: tables on a terminal, JSON for programs."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from .texts import t

if TYPE_CHECKING:
    from rich.console import Console

Item = Mapping[str, Any]

# As much of an id as is usually the only one: the moment of the submit.
SHORT_ID = 13

_COLOURS = {
    **dict.fromkeys(("COMPLETED", "SUCCEEDED", "completed", "IDLE", "active"), "green"),
    **dict.fromkeys(("RUNNING", "CANCELLING"), "cyan"),
    **dict.fromkeys(("FAILED", "failed", "DISCONNECTED", "revoked"), "red"),
    **dict.fromkeys(("CANCELLED", "cancelled", "interrupted", "open"), "yellow"),
    **dict.fromkeys(("PENDING", "STOPPED_GRACEFUL", "handed_back", "expired"), "dim"),
}
# Colours are the only escape sequences that a text of a flow may send to a terminal.
_CONTROLS = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f\x80-\x9f]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Column:
    heading: str
    of: Callable[[Item], object]
    is_state: bool = False
    is_number: bool = False
    style: str = ""


@dataclass(frozen=True)
class Table:
    """`columns` are for people. `plain`, if given, are those of a table that is piped: scripts count on them."""

    items: Sequence[Item]
    columns: Sequence[Column]
    plain: Mapping[str, Callable[[Item], object]] | None = None
    # What is said below it on a terminal.
    note: str | None = None
    empty: str = ""
    # A row is one line, cut where the terminal ends; for texts that must be read whole it is as many as it takes.
    wraps: bool = False


@dataclass
class Output:
    """Data goes to stdout, everything else to stderr."""

    form: str | None = None
    colour: bool = True
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    stderr: TextIO = field(default_factory=lambda: sys.stderr)

    def __post_init__(self) -> None:
        self.is_terminal = self.stdout.isatty()
        self.form = self.form or ("table" if self.is_terminal else "json")

    def show(self, data: Any, shown: Callable[[], None], status: Callable[[], Iterable[str]] | None = None) -> None:
        """Print data in the form that was asked for."""
        if self.form == "status" and status is not None:
            for line in status():
                self.line(line)
        elif self.form == "json":
            self.json(data)
        else:
            shown()

    def json(self, data: Any) -> None:
        """One line for programs; for people with an indent."""
        if self.is_terminal:
            self.line(json.dumps(data, ensure_ascii=False, indent=2))
        else:
            self.line(json.dumps(data))

    def line(self, text: str = "") -> None:
        self.raw(f"{text}\n")

    def raw(self, text: str) -> None:
        """Text as it came, for a program; a terminal is spared its control characters."""
        self.stdout.write(printable(text) if self.is_terminal else text)
        self.stdout.flush()

    def note(self, text: str) -> None:
        """Something beside the data."""
        self.stderr.write((printable(text) if self.stderr.isatty() else text) + "\n")
        self.stderr.flush()

    def table(self, table: Table) -> None:
        if not self.is_terminal:
            self._plain(table)
            return
        if not table.items:
            self.line(table.empty or t("table.empty"))
        else:
            self.console().print(rich_table(table))
        if table.note:
            self.console().print(table.note, style="dim", markup=False, highlight=False)

    def _plain(self, table: Table) -> None:
        columns = table.plain or {column.heading: column.of for column in table.columns}
        if not table.items:
            self.line(t("table.none"))
            return
        rows = [list(columns), *([_cell(of(item)) for of in columns.values()] for item in table.items)]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        for row in rows:
            self.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def fields(self, rows: Iterable[tuple[str, object]], *, state: str | None = None) -> None:
        """Names and values below each other; those without a value are left out."""
        kept = [(name, _cell(value)) for name, value in rows if value not in (None, "", [], {})]
        if not self.is_terminal:
            for name, value in kept:
                self.line(f"{name}: {value}")
            return
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid.grid(padding=(0, 2))
        for name, value in kept:
            style = colour_of(value) if value == state else ""
            grid.add_row(Text(name, style="bold"), Text(value, style=style, overflow="fold"))
        self.console().print(grid)

    def heading(self, text: str) -> None:
        self.line()
        if self.is_terminal:
            self.console().print(text, style="bold", markup=False, highlight=False)
        else:
            self.line(f"{text}:")

    def console(self) -> "Console":
        from rich.console import Console

        return Console(file=self.stdout, no_color=not self.colour or None, highlight=False, soft_wrap=False)


def rich_table(table: Table) -> Any:
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    columns = [column for column in table.columns if any(_cell(column.of(item), nothing="") for item in table.items)]
    for column in columns:
        last = column is columns[-1]
        grid.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            no_wrap=not (last or table.wraps),
            overflow="fold" if table.wraps else "ellipsis",
        )
    for item in table.items:
        cells = []
        for column in columns:
            text = _cell(column.of(item), nothing="").replace("\n", " ")
            style = colour_of(text) if column.is_state else column.style
            cells.append(
                Text(text, style=style, no_wrap=not table.wraps, overflow="fold" if table.wraps else "ellipsis")
            )
        grid.add_row(*cells)
    return grid


def telling_length(ids: Sequence[str], shortest: int) -> int:
    """How much of an id tells it from the others."""
    for length in range(shortest, 36):
        if len({one[:length] for one in ids}) == len(set(ids)):
            return length
    return 36


def colour_of(state: str) -> str:
    return _COLOURS.get(state.partition(" ")[0], "")


def wants_colour(no_color: bool) -> bool:
    return not (no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb")


def printable(text: str) -> str:
    """Without the control characters that could change what the terminal shows elsewhere."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def colourless(text: str) -> str:
    return _COLOUR.sub("", text)


def _cell(value: object, nothing: str = "-") -> str:
    if value is None or value == "" or value == []:
        return nothing
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool):
        return t("word.yes") if value else t("word.no")
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return printable(",".join(value))
    return printable(json.dumps(value, ensure_ascii=False))

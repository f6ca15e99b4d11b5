"""Terminal output: progress, the status table, and changes while the stack runs."""

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from ..data_dir.state import PartPhase, PartState
from ..logs.files import last_lines, readable

_COLOURS = {
    PartPhase.STARTING: "yellow",
    PartPhase.HEALTHY: "green",
    PartPhase.UNHEALTHY: "red",
    PartPhase.RESTARTING: "red",
    PartPhase.STOPPED: "dim",
}
_CRASH_LINES = 5
# Without a terminal: the shortest pause between two lines that name the parts not yet healthy.
_PROGRESS_INTERVAL_SECONDS = 3.0
# Without a terminal there is no width to keep to, and folded paths could not be copied.
_WIDTH_WITHOUT_TERMINAL = 200


class _SteadyConsole(RichConsole):
    """Stops printing after a broken pipe, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # Buffered output must not fail again when the interpreter flushes it at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class Console:
    """Prints progress and changes. With `steady`, a closed terminal or pipe does not break the stack."""

    def __init__(self, *, steady: bool = False) -> None:
        self._rich = _SteadyConsole(highlight=False) if steady else RichConsole(highlight=False)
        if not self._rich.is_terminal:
            self._rich.width = _WIDTH_WITHOUT_TERMINAL
        self._status: Status | None = None
        self._begun = self._progress_shown_at = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line of rich markup."""
        with contextlib.suppress(OSError):
            self._rich.print(text, soft_wrap=True)

    def plain(self, text: str) -> None:
        """Print a line as it is, without markup."""
        with contextlib.suppress(OSError):
            self._rich.out(text, highlight=False)

    def show_progress(self, parts: Sequence[PartState], changed: PartState | None) -> None:
        """Called at every change while the parts start."""
        if changed is not None and changed.state is PartPhase.HEALTHY:
            self.say(f"  [green]✓[/] {changed.name} [dim]{time.monotonic() - self._begun:.1f} s[/]")
        waiting = ", ".join(_waiting(part) for part in parts if part.state is not PartPhase.HEALTHY)
        if not waiting:
            self.end_progress()
        elif self._rich.is_terminal:
            self._spin(f"waiting for {waiting}")
        elif time.monotonic() - self._progress_shown_at > _PROGRESS_INTERVAL_SECONDS:
            self._progress_shown_at = time.monotonic()
            self.say(f"  waiting for {waiting}")

    def end_progress(self) -> None:
        if self._status is not None:
            with contextlib.suppress(OSError):
                self._status.stop()
            self._status = None

    def _spin(self, text: str) -> None:
        with contextlib.suppress(OSError):
            if self._status is None:
                self._status = self._rich.status(text)
                self._status.start()
            else:
                self._status.update(text)

    def show_parts(self, parts: Sequence[PartState]) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("part", "pid", "state", "address", "log file"):
            table.add_column(heading, overflow="fold", justify="right" if heading == "pid" else "left")
        for part in parts:
            state = f"[{_COLOURS[part.state]}]{part.state}[/]"
            if part.state not in (PartPhase.HEALTHY, PartPhase.STOPPED) and part.reason:
                state += f" [dim]{escape(part.reason)}[/]"
            address, log = escape(_short(part.address)), escape(_short(part.log))
            table.add_row(part.name, str(part.pid or "–"), state, address, log)
        with contextlib.suppress(OSError):
            self._rich.print(table)

    def show_flow_news(self, part: str, text: str, *, is_error: bool) -> None:
        """What a worker says about its flows."""
        now, colour = time.strftime("%H:%M:%S"), "red" if is_error else "green"
        self.say(f"[dim]{now}[/] {part}: [{colour}]{escape(text)}[/]")

    def show_ready(self, url: str, lines: Sequence[str]) -> None:
        self.say(f"\n[bold green]ready[/] {url}")
        for line in lines:
            self.plain(line)

    def show_change(self, part: PartState, before: PartPhase) -> None:
        """Called at every change while the stack runs."""
        now = f"[dim]{time.strftime('%H:%M:%S')}[/]"
        match part.state:
            case PartPhase.RESTARTING:
                self.say(f"{now} [red]{part.name} ended[/]: {escape(part.reason or '')} [dim]({_short(part.log)})[/]")
                for line in last_lines(Path(part.log), _CRASH_LINES):
                    self.say(f"         [dim]{escape(readable(line))}[/]")
            case PartPhase.HEALTHY:
                self.say(f"{now} [green]{part.name} is healthy[/] (pid {part.pid})")
            case PartPhase.UNHEALTHY if before is not PartPhase.UNHEALTHY:
                self.say(f"{now} [red]{part.name} is unhealthy[/]: {escape(part.reason or '')}")
            case _:
                return


def _waiting(part: PartState) -> str:
    return f"{part.name} [dim]({escape(part.reason)})[/]" if part.reason else part.name


def _short(text: str) -> str:
    """Paths below the current directory are shown relative to it."""
    here = os.getcwd() + os.sep
    return text.removeprefix("unix:").removeprefix(here) if text.startswith(("unix:", here)) else text

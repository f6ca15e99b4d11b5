"""The command `logs`: shows what the parts have logged, in the order of time."""

import sys
from itertools import chain
from typing import Annotated

import typer

from fleet_kit.logs.text import is_coloured

from ..data_dir.folder import DataFolder
from ..logs.files import follow, for_people, in_order_of_time, last_lines, logs_of
from ..settings import LauncherSettings
from .console import Console
from .options import DataDir


def logs(
    part: Annotated[str | None, typer.Argument(help="One part; all of them when left out.")] = None,
    data_dir: DataDir = None,
    follow_on: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many lines of each part.", min=0)] = 100,
    as_text: Annotated[
        bool | None,
        typer.Option("--text/--json", help="For reading, or as they are (text on a terminal)."),
    ] = None,
) -> None:
    """Show the logs of all parts, by the time at which it was said, or of one."""
    settings = LauncherSettings.load(data_dir=data_dir)
    folder, console = DataFolder(settings.data_dir), Console()
    if as_text is None:
        as_text = sys.stdout.isatty() or settings.log_format == "text"
    coming = follow(folder, part) if follow_on else iter(())
    so_far = in_order_of_time({log: last_lines(log, lines) for log in logs_of(folder, part)})
    for name, line in chain(so_far, coming):
        if as_text:
            console.plain(for_people(name, line, coloured=is_coloured(sys.stdout)))
        else:
            console.plain(line if part else f"{name} | {line}")

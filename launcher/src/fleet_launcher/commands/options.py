"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder that the stack keeps everything in (.fleet).", metavar="DIR"),
]

"""The command `status`: shows what runs in a data folder, by its state file and the running processes."""

import json
from typing import Annotated, Any

import typer

from ..data_dir.folder import DataFolder
from ..data_dir.state import StackState, present_state
from ..settings import LauncherSettings
from .console import Console
from .options import DataDir

_STOPPED_EXIT_CODE = 3


def status(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show the parts of a stack. Exit code 0: it runs; 3: it is stopped."""
    folder, console = DataFolder(LauncherSettings.load(data_dir=data_dir).data_dir), Console()
    state = present_state(folder)
    if as_json:
        console.plain(json.dumps(status_document(state), indent=2))
    elif state is None:
        console.say(f"stopped: no stack runs in {folder.path}")
    else:
        console.show_parts(state.parts)
        console.say(
            f"\n{state.state} {state.url}" if state.state != "stopped" else "\nstopped: its launcher was killed"
        )
    if state is None or state.state == "stopped":
        raise typer.Exit(_STOPPED_EXIT_CODE)


def status_document(state: StackState | None) -> dict[str, Any]:
    """The document that `status --json` prints."""
    if state is None:
        return {"state": "stopped", "url": None, "parts": []}
    return {
        "state": state.state,
        "url": state.url,
        "launcher_pid": state.launcher_pid if state.launcher_is_running else None,
        "parts": [part.model_dump(mode="json", exclude={"started_at"}) for part in state.parts],
    }

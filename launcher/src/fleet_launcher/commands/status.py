"""Shows what runs in a data folder: the state file, checked against the running processes."""

import json
from typing import Any, Literal

from ..data_dir.folder import DataFolder
from ..data_dir.state import StackState, read_state
from .console import Console

_INTERNAL = {"started_at"}


def show_status(folder: DataFolder, console: Console, *, as_json: bool) -> Literal["running", "stopped", "degraded"]:
    state = _present_state(folder)
    if as_json:
        console.plain(json.dumps(_document(state), indent=2))
    elif state is None:
        console.say(f"stopped: no stack runs in {folder.path}")
    else:
        console.show_parts(state.parts)
        console.say(
            f"\n{state.state} {state.url}" if state.state != "stopped" else "\nstopped: its launcher was killed"
        )
    return state.state if state else "stopped"


def status_document(folder: DataFolder) -> dict[str, Any]:
    """The document that `status --json` prints."""
    return _document(_present_state(folder))


def _present_state(folder: DataFolder) -> StackState | None:
    recorded = read_state(folder)
    return recorded.corrected() if recorded else None


def _document(state: StackState | None) -> dict[str, Any]:
    if state is None:
        return {"state": "stopped", "url": None, "parts": []}
    return {
        "state": state.state,
        "url": state.url,
        "launcher_pid": state.launcher_pid if state.launcher_is_running else None,
        "parts": [part.model_dump(mode="json", exclude=_INTERNAL) for part in state.parts],
    }

"""The command `status`: shows what runs in a data folder, by its state file and the running processes."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..data_dir.folder import DataFolder
from ..data_dir.gateway_secret import gateway_secret
from ..data_dir.state import StackState, present_state
from ..settings import LauncherSettings
from ..stack.health import WorkerRegistry
from ..stack.parts import WORKER_PREFIX
from .console import Console
from .options import DataDir

_STOPPED_EXIT_CODE = 3


def status(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show the parts of a stack. Exit code 0: it runs; 3: it is stopped."""
    settings = LauncherSettings.load(data_dir=data_dir)
    folder, console = DataFolder(settings.data_dir), Console()
    state = present_state(folder)
    errors = {} if state is None else asyncio.run(_flow_errors(folder, settings, state))
    if as_json:
        console.plain(json.dumps(status_document(state, errors), indent=2))
    elif state is None:
        console.say(f"stopped: no stack runs in {folder.path}")
    else:
        console.show_parts(state.parts)
        for part, error in errors.items():
            console.plain(f"{part}: {error}")
        console.say(
            f"\n{state.state} {state.url}" if state.state != "stopped" else "\nstopped: its launcher was killed"
        )
    if state is None or state.state == "stopped":
        raise typer.Exit(_STOPPED_EXIT_CODE)


async def _flow_errors(folder: DataFolder, settings: LauncherSettings, state: StackState) -> dict[str, str]:
    """What the stack's workers say is wrong with their flows, by the name of their part."""
    own = {part.address.partition(" ")[0]: part.name for part in state.parts if part.name.startswith(WORKER_PREFIX)}
    if not own or state.state == "stopped":
        return {}
    socket = Path(state.sockets) / folder.socket("workers-api").name
    workers = await WorkerRegistry(socket, gateway_secret(folder, settings)).all() or []
    found = {own[one.worker_id]: one.flows_error for one in workers if one.worker_id in own}
    return {name: error for name, error in sorted(found.items()) if error is not None}


def status_document(state: StackState | None, flow_errors: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The document that `status --json` prints."""
    if state is None:
        return {"state": "stopped", "url": None, "parts": []}
    return {
        "state": state.state,
        "url": state.url,
        "launcher_pid": state.launcher_pid if state.launcher_is_running else None,
        "parts": [
            part.model_dump(mode="json", exclude={"started_at"}) | {"flows_error": (flow_errors or {}).get(part.name)}
            for part in state.parts
        ],
    }

"""The command `down`: stops the stack of a data folder, however it was started and even if its launcher is dead."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

from fleet_contracts.status import ACTIVE_WORKER_STATES
from fleet_contracts.worker_record import WorkerRecord

from ..data_dir.folder import DataFolder
from ..data_dir.gateway_secret import gateway_secret
from ..data_dir.state import PartPhase, StackState, locked, present_state, read_state
from ..settings import LauncherSettings
from ..stack.health import WorkerRegistry
from .console import Console
from .launch import end_leftovers
from .options import DataDir

_LOOK_SECONDS = 0.1
_ANNOUNCE_AFTER_SECONDS = 1.0
# For the launcher's own work, on top of the parts' stop times.
_SLACK_SECONDS = 10.0


def down(data_dir: DataDir = None) -> None:
    """Stop the stack of a data dir, in order, and wait until it is gone."""
    settings = LauncherSettings.load(data_dir=data_dir)
    folder, console = DataFolder(settings.data_dir), Console()
    state = present_state(folder)
    if state is None:
        console.say(f"nothing runs in {folder.path}")
        return
    running = [part.name for part in state.parts if part.pid is not None]
    separate = asyncio.run(_separate_workers(folder, settings, state)) if running else []
    if state.launcher_is_running:
        _stop_launcher(folder, state, console)
        running.append("the launcher")
    with locked(folder):
        end_leftovers(folder)
    if running:
        console.say(f"stopped {', '.join(running)}")
        for worker in separate:
            console.plain(
                f"worker {worker.worker_id} was started separately and goes on, waiting for the stack to come back; "
                f"stop it on {worker.machine.host} with: kill {worker.machine.pid}"
            )
    else:
        console.say(f"nothing runs in {folder.path}; cleared what a killed launcher had left")


async def _separate_workers(folder: DataFolder, settings: LauncherSettings, state: StackState) -> list[WorkerRecord]:
    """Live workers in the registry that the stack did not start."""
    secret = gateway_secret(folder, settings)
    registry = WorkerRegistry(Path(state.sockets) / folder.socket("workers-api").name, secret)
    own = {part.address.partition(" ")[0] for part in state.parts}
    alive = [record.worker_id for record in await registry.all() or [] if record.state in ACTIVE_WORKER_STATES]
    details = await asyncio.gather(*(registry.one(worker_id) for worker_id in alive if worker_id not in own))
    return [worker for worker in details if worker is not None]


def _stop_launcher(folder: DataFolder, state: StackState, console: Console) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(state.launcher_pid, signal.SIGTERM)
    begun = time.monotonic()
    announced = False
    while state.launcher_is_running:
        waited = time.monotonic() - begun
        if waited > state.stop_seconds + _SLACK_SECONDS:
            console.say(f"the launcher (pid {state.launcher_pid}) does not stop; killing it")
            with contextlib.suppress(ProcessLookupError):
                os.kill(state.launcher_pid, signal.SIGKILL)
        elif waited > _ANNOUNCE_AFTER_SECONDS and not announced:
            announced = True
            console.say(f"waiting for {_still_running(folder)} to stop")
        time.sleep(_LOOK_SECONDS)


def _still_running(folder: DataFolder) -> str:
    state = read_state(folder)
    names = [part.name for part in state.parts if part.state is not PartPhase.STOPPED] if state else []
    return ", ".join(names) or "the launcher"

"""The command `reload`: lets the workers of a stack load their flows anew, and shows what became of it."""

import os
import signal
import time

import typer

from fleet_contracts.log_events import LogEvent

from ..data_dir.folder import DataFolder
from ..data_dir.state import PartPhase, PartState, present_state
from ..errors import LaunchError
from ..settings import LauncherSettings
from ..stack.parts import WORKER_PREFIX
from .console import Console
from .flow_news import FlowNewsReader
from .options import DataDir

_LOOK_SECONDS = 0.1
_WAIT_SECONDS = 600.0
# A worker that is just being started does not know the signal yet.
_STARTED = (PartPhase.HEALTHY, PartPhase.UNHEALTHY)
_ENDS = (LogEvent.FLOWS_RELOADED, LogEvent.FLOWS_RELOAD_FAILED)


def reload(data_dir: DataDir = None) -> None:
    """Load the flows of the stack's workers anew. Runs in progress keep their code; a broken edit changes nothing."""
    folder, console = DataFolder(LauncherSettings.load(data_dir=data_dir).data_dir), Console()
    state = present_state(folder)
    workers = (
        [part for part in state.parts if part.name.startswith(WORKER_PREFIX) and part.state in _STARTED]
        if state
        else []
    )
    if not workers:
        raise LaunchError(f"no worker of a stack runs in {folder.path}; start one with `{folder.command('up')}`")
    news = FlowNewsReader(folder, (worker.name for worker in workers))
    for worker in workers:
        _hang_up(worker)
    waiting, failed = {worker.name: worker for worker in workers}, False
    give_up_at = time.monotonic() + _WAIT_SECONDS
    while waiting and time.monotonic() < give_up_at:
        time.sleep(_LOOK_SECONDS)
        for one in news.new():
            console.show_flow_news(one.part, one.text, is_error=one.is_error)
            failed |= one.event == LogEvent.FLOWS_RELOAD_FAILED
            if one.event in _ENDS:
                waiting.pop(one.part, None)
        ended = [name for name, worker in waiting.items() if not worker.is_running]
        if ended:
            raise LaunchError(f"{ended[0]} has ended; see {folder.log(ended[0])}")
    if waiting:
        raise LaunchError(f"{', '.join(waiting)} did not reload within {_WAIT_SECONDS:g} s; see the logs")
    raise typer.Exit(int(failed))


def _hang_up(worker: PartState) -> None:
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGHUP)

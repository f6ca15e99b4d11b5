"""The lock on a data folder, and the state file that records what runs there."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from ..errors import LaunchError
from ..part_processes import is_alive
from .folder import DataFolder


class PartPhase(StrEnum):
    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class PartState(BaseModel):
    name: str
    state: PartPhase = PartPhase.STOPPED
    # The reason for the state, if there is one to show.
    reason: str | None = None
    pid: int | None = None
    # Identifies the process together with the pid, because pids are reused.
    started_at: float | None = None
    restarts: int = 0
    address: str
    log: str
    data: str | None = None

    @property
    def is_running(self) -> bool:
        return self.pid is not None and is_alive(self.pid, self.started_at)


class StackState(BaseModel):
    stack: str
    url: str
    launcher_pid: int
    launcher_started_at: float
    sockets: str
    # How long an orderly stop may take.
    stop_seconds: float
    parts: list[PartState]
    # Example commands that are printed after the start.
    example_commands: list[str] = []
    # The URL of a NATS that the stack did not start.
    nats_url: str | None = None

    @property
    def launcher_is_running(self) -> bool:
        return is_alive(self.launcher_pid, self.launcher_started_at)

    @property
    def state(self) -> Literal["running", "stopped", "degraded"]:
        if self.parts and all(part.state is PartPhase.HEALTHY for part in self.parts):
            return "running"
        if not self.launcher_is_running and all(part.state is PartPhase.STOPPED for part in self.parts):
            return "stopped"
        return "degraded"


def _corrected(part: PartState, *, launcher_runs: bool) -> PartState:
    if not part.is_running:
        phase = part.state if launcher_runs and part.state is PartPhase.RESTARTING else PartPhase.STOPPED
        return part.model_copy(update={"pid": None, "state": phase})
    if not launcher_runs:
        return part.model_copy(update={"state": PartPhase.UNHEALTHY, "reason": "nobody watches it any more"})
    return part


def read_state(folder: DataFolder) -> StackState | None:
    """The state that the launcher wrote last; None without a state file."""
    try:
        text = folder.state.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LaunchError(f"cannot read {folder.state} ({error.strerror}); check --data-dir") from error
    try:
        return StackState.model_validate_json(text)
    except ValidationError as error:
        raise LaunchError(f"{folder.state} is not a state file of this version; remove it") from error


def present_state(folder: DataFolder) -> StackState | None:
    """The state checked against the processes: the file may miss a recent exit, and a killed launcher always."""
    state = read_state(folder)
    if state is None:
        return None
    launcher_runs = state.launcher_is_running
    parts = [_corrected(part, launcher_runs=launcher_runs) for part in state.parts]
    return state.model_copy(update={"parts": parts})


def is_running(folder: DataFolder) -> bool:
    """Whether a launcher runs the stack of this folder."""
    state = read_state(folder)
    return state is not None and state.launcher_is_running


def write_state(folder: DataFolder, state: StackState) -> None:
    """Replace the state file atomically, so that a reader never sees half of it."""
    draft = folder.state.with_suffix(".json.new")
    draft.write_text(state.model_dump_json(indent=2) + "\n")
    draft.replace(folder.state)


@contextlib.contextmanager
def locked(folder: DataFolder) -> Iterator[None]:
    """Lock the folder for one launcher. The kernel releases the lock when the launcher dies, however it dies."""
    descriptor = _take(folder)
    try:
        yield
    finally:
        folder.lock.unlink(missing_ok=True)
        os.close(descriptor)


def _take(folder: DataFolder) -> int:
    while True:
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode().strip()
            os.close(descriptor)
            raise LaunchError(
                f"the data dir {folder.path} is in use by the stack with pid {holder or 'unknown'}; "
                f"stop it with `{folder.command('down')}` or choose another with --data-dir"
            ) from error
        if _is_same_file(descriptor, folder.lock):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor
        # The holder removed the file between our open and our lock: we have locked a deleted file.
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False

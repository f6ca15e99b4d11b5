"""Starts a stack in the background and waits until it is healthy or has failed."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

from ..data_dir.folder import DataFolder
from ..data_dir.state import PartPhase, is_running, read_state
from ..errors import LaunchError
from .console import Console

READY = "ready"
_LOOK_SECONDS = 0.2
LAUNCHER_LOG = "launcher"


def start_detached(folder: DataFolder, arguments: Sequence[str], console: Console) -> None:
    """Run the same command in a new session; return when the stack is healthy, raise if it fails."""
    if not is_running(folder):
        folder.rotate_log(LAUNCHER_LOG)
    progress = _Progress(folder, console)
    read_end, write_end = os.pipe()
    with folder.log(LAUNCHER_LOG).open("ab") as output:
        launcher = subprocess.Popen(  # noqa: S603 - our own command line, once more
            [sys.executable, "-m", "fleet_launcher", *arguments, "--report-fd", str(write_end)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[write_end],
            start_new_session=True,
        )
    os.close(write_end)
    with _stopped_if_interrupted(launcher):
        report = _read_report(read_end, lambda: progress.show(launcher.pid))
    os.close(read_end)
    if report != READY:
        launcher.wait()
        raise LaunchError(report or f"the launcher ended without a word; see {folder.log(LAUNCHER_LOG)}")
    progress.show(launcher.pid)
    state = read_state(folder)
    if state is None:
        raise LaunchError(f"the stack was stopped right after its start; see {folder.log(LAUNCHER_LOG)}")
    console.show_parts(state.parts)
    console.show_ready(state.url, state.example_commands)
    console.plain(f"it runs in the background; stop it with: {folder.command('down')}")


class Report:
    """The write end of a pipe on which the background launcher reports success or failure of the start."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> None:
        """Send `READY`, or a sentence that says why the start has failed. Only the first call counts."""
        if self._descriptor is None:
            return
        # The waiting command may have exited.
        with contextlib.suppress(OSError):
            os.write(self._descriptor, text.encode())
        os.close(self._descriptor)
        self._descriptor = None


def _read_report(descriptor: int, meanwhile: Callable[[], None]) -> str:
    text = b""
    while True:
        readable, _, _ = select.select([descriptor], [], [], _LOOK_SECONDS)
        if not readable:
            meanwhile()
            continue
        data = os.read(descriptor, 65536)
        if not data:
            return text.decode()
        text += data


@contextlib.contextmanager
def _stopped_if_interrupted(launcher: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Stop the launcher if Ctrl-C or SIGTERM interrupts the wait."""

    def give_up(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, give_up)
    try:
        yield
    except KeyboardInterrupt:
        launcher.terminate()
        launcher.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


class _Progress:
    """Shows what the launcher in the background writes into the state file."""

    def __init__(self, folder: DataFolder, console: Console) -> None:
        self._folder = folder
        self._console = console
        self._healthy: set[str] = set()

    def show(self, launcher_pid: int) -> None:
        state = read_state(self._folder)
        if state is None or state.launcher_pid != launcher_pid:
            return
        for part in state.parts:
            news = part.state is PartPhase.HEALTHY and part.name not in self._healthy
            if news:
                self._healthy.add(part.name)
            self._console.show_progress(state.parts, part if news else None)

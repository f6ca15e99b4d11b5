"""Our own programs as processes of a test, started quickly and used like those of `subprocess`."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO


class Program:
    """A process that runs a function of ours, such as `fleet_worker.cli:main`, or a script, with arguments."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
        folder: Path | None = None,
    ) -> None:
        self.args = list(command)
        self.returncode: int | None = None
        wanted = {"command": self.args, "env": dict(env), "folder": str(folder or Path.cwd())}
        self._end, exit_status = os.pipe()
        try:
            self.pid = _server().start(json.dumps(wanted).encode(), [stdout.fileno(), stderr.fileno(), exit_status])
        finally:
            os.close(exit_status)

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], seconds)[0]:
            self.returncode = int(os.read(self._end, 64))
            os.close(self._end)
        return self.returncode


def run_program(
    command: Sequence[str], *, env: Mapping[str, str], folder: Path | None = None, timeout: float = 120.0
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end; the result has its output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        program = Program(command, env=env, stdout=out, stderr=err, folder=folder)
        try:
            code = program.wait(timeout)
        finally:
            program.kill()
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(list(command), code, *said)


class _Server:
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fleet_testkit.program_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C must reach pytest only; the tests then end the programs they started.
                start_new_session=True,
            )

    def start(self, wanted: bytes, descriptors: list[int]) -> int:
        with self._lock:
            socket.send_fds(self._socket, [wanted], descriptors)
            return int(self._socket.recv(64))

    def close(self) -> None:
        self._socket.close()
        self._process.wait(timeout=30)


@cache
def _server() -> _Server:
    server = _Server()
    atexit.register(server.close)
    return server

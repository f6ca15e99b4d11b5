"""Commands of pyoco-server in processes of their own, with stand-ins for the parts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleet_launcher.data_dir.folder import DataFolder
from fleet_launcher.data_dir.state import StackState, present_state
from fleet_testkit.nats_server import free_port
from fleet_testkit.programs import run_program
from fleet_testkit.waiting import wait_until

SERVER = Path(__file__).with_name("standin_server.py")


class StandinServer:
    """One data dir, and the launchers that a test starts on it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.launchers: list[subprocess.Popen[str]] = []

    def up(
        self, parts: Sequence[dict[str, Any]], *options: str, env: dict[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        launcher = subprocess.Popen(
            [sys.executable, str(SERVER), "up", *self._options(), "--port", str(self.port), *options],
            env=self._env(parts, env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.launchers.append(launcher)
        return launcher

    def up_and_ready(self, parts: Sequence[dict[str, Any]], *options: str) -> "subprocess.Popen[str]":
        launcher = self.up(parts, *options)
        self.wait_running()
        return launcher

    def wait_running(self) -> None:
        def looks_healthy() -> bool:
            state = self.state()
            return state is not None and state.launcher_is_running and state.state == "running"

        wait_until(looks_healthy, within=30, what="the stack running")

    def state(self) -> StackState | None:
        """The document of `status --json`, without a process for every look."""
        return present_state(DataFolder(self.data_dir))

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_program([str(SERVER), *arguments, *self._options()], env=self._env())

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return answer

    def pids(self) -> dict[str, int]:
        state = self.state()
        return {part.name: part.pid for part in state.parts if part.pid is not None} if state else {}

    def child_of(self, name: str) -> psutil.Process:
        return psutil.Process(int((self.data_dir / f"{name}.child").read_text()))

    def leftovers(self) -> list[str]:
        """The files that a stopped stack must not leave in its data dir."""
        return [path.name for path in self.data_dir.iterdir() if path.name in ("fleet.lock", "fleet.json", "run")]

    def _options(self) -> list[str]:
        return ["--data-dir", str(self.data_dir)]

    def _env(self, parts: Sequence[dict[str, Any]] = (), extra: dict[str, str] | None = None) -> dict[str, str]:
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PYOCO_")}
        return {**outside, "PYOCO_LOAD_DOTENV": "0", "STANDIN_PARTS": json.dumps(parts), **(extra or {})}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandinServer]:
    server = StandinServer(tmp_path / "data")
    yield server
    for launcher in server.launchers:
        if launcher.poll() is None:
            launcher.send_signal(signal.SIGKILL)
        launcher.communicate(timeout=30)
    server.run("down")

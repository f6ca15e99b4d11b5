"""Runs commands of the documentation in a shell, on a data dir and a port of the test's own."""

import os
import shlex
import subprocess
from pathlib import Path

from .nats_server import free_port

REPOSITORY = Path(__file__).parents[3]


class CommandShell:
    """`instead` names words of the commands that are other words in the test, such as addresses."""

    def __init__(self, folder: Path, instead: dict[str, str] | None = None, **settings: str) -> None:
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PYOCO_")}
        self.port = free_port()
        self.data_dir = folder / "data"
        self._instead = {"localhost:8000": f"127.0.0.1:{self.port}"} | (instead or {})
        self.env = {
            **outside,
            "PYOCO_LOAD_DOTENV": "0",
            "PYOCO_DATA_DIR": str(self.data_dir),
            "PYOCO_PORT": str(self.port),
            **settings,
        }

    def run(self, command: str, **variables: str) -> str:
        """Run it and return its output; it must succeed."""
        done = subprocess.run(
            ["bash", "-euc", self._here(command)],
            cwd=REPOSITORY,
            env=self.env | variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, command: str) -> "subprocess.Popen[bytes]":
        """Run it in the background; its output is in the data dir."""
        with (self.data_dir / "separate.log").open("wb") as log:
            return subprocess.Popen(
                shlex.split(self._here(command)), cwd=REPOSITORY, env=self.env, stdout=log, stderr=log
            )

    def _here(self, command: str) -> str:
        for there, here in self._instead.items():
            command = command.replace(there, here)
        return command

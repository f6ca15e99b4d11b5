"""The fleet in containers, started and stopped with docker compose as an operator does it."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from .nats_server import free_port

_ROOT = Path(__file__).parents[3]
_COMMAND_SECONDS = 900
# Images of a tag of their own, so that tests never replace those that somebody runs.
_IMAGES_TAG = os.environ.get("FLEET_TEST_IMAGES_TAG", "test")


def why_no_engine() -> str | None:
    """Why containers cannot be used here, in a sentence; None if they can."""
    try:
        asked = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no container engine answers ({error})"
    return None if asked.returncode == 0 else f"no container engine answers ({asked.stderr.strip()[:200]})"


class ComposedFleet:
    """`with ComposedFleet("pyoco-test") as fleet: fleet.client.post("/runs", …)`"""

    def __init__(self, project: str, *, files: Sequence[str] = ("compose.yaml",), **env: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=30)
        self._command = ["docker", "compose", "-p", project, *(f"-f{_ROOT / file}" for file in files)]
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PYOCO_")}
        self._env = {**outside, "PYOCO_PUBLISH": f"127.0.0.1:{self.port}", "PYOCO_VERSION": _IMAGES_TAG, **env}

    def __enter__(self) -> "ComposedFleet":
        self.run("build", "--quiet")
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.run("down", "--volumes", "--remove-orphans", "--timeout", "30")

    def up(self, *options: str) -> None:
        try:
            self.run("up", "--detach", "--wait", "--wait-timeout", "180", *options)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from error

    def logs(self, *services: str) -> str:
        return self.run("logs", "--no-color", "--tail", "40", *services)

    def containers(self, service: str) -> list[str]:
        """The ids of those that run."""
        return self.run("ps", "--quiet", service).split()

    def inspect(self, container: str) -> dict[str, Any]:
        found = subprocess.run(["docker", "inspect", container], capture_output=True, text=True, check=True).stdout
        described: dict[str, Any] = json.loads(found)[0]
        return described

    def docker(self, *arguments: str) -> str:
        return _run(["docker", *arguments], self._env)

    def run(self, *arguments: str) -> str:
        return _run([*self._command, *arguments], self._env)


def _run(command: Sequence[str], env: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=_ROOT, env=env, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout

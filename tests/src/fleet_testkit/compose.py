"""The fleet in containers, started and stopped with docker compose as an operator does it."""

import fcntl
import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self

import httpx

from .log_check import check_log_lines, check_refusals
from .nats_server import free_port
from .waiting import wait_until

ROOT = Path(__file__).parents[3]
_COMMAND_SECONDS = 900
# The services whose log lines must keep our contract; NATS and PostgreSQL have formats of their own.
OWN_SERVICES = ("secrets", "migrate", "runs-api", "workers-api", "wheels-api", "auth", "gateway", "worker")
# The images of tests have their own tag, so that they never replace images in use.
IMAGES_TAG = os.environ.get("FLEET_TEST_IMAGES_TAG", "test")
# The revision label of the images: constant, so that a new commit does not rebuild them.
IMAGES_REVISION = "tested"


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
        # Each process of pytest-xdist has its own project.
        self.project = project = "-".join(filter(None, [project, os.environ.get("PYTEST_XDIST_WORKER")]))
        # Additional options of every `up`.
        self.up_options: list[str] = []
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PYOCO_")}
        own = {
            "PYOCO_PUBLISH": f"127.0.0.1:{self.port}",
            "PYOCO_VERSION": IMAGES_TAG,
            "PYOCO_COMPOSE_ENV": "/dev/null",
        }
        # Also for callers of docker compose itself, such as the scripts of operators.
        compose = {"COMPOSE_PROJECT_NAME": project, "COMPOSE_FILE": ":".join(str(ROOT / file) for file in files)}
        self.env = {**outside, **own, **compose, **env}

    def __enter__(self) -> Self:
        build_images()
        # An earlier session may have been killed.
        self.remove()
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.remove()

    def up(self, *options: str) -> None:
        try:
            self.run("up", "--detach", "--wait", "--wait-timeout", "180", *self.up_options, *options)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from error

    def down(self) -> None:
        """Remove the containers, keep the volumes."""
        self.run("down", "--remove-orphans", "--timeout", "30")

    def remove(self) -> None:
        """Remove the containers and the volumes."""
        self.run("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "30")
        of_it = ["--quiet", "--filter", f"label=com.docker.compose.project={self.project}"]
        left = [self.docker("ps", "--all", *of_it), self.docker("volume", "ls", *of_it)]
        assert left == ["", ""], f"containers and volumes of {self.project} that compose left behind: {left}"

    def layered(self, *files: str, **env: str) -> "ComposedFleet":
        """The same fleet with more layers on it: what they add can be started beside what runs."""
        other = copy(self)
        layers = ":".join([self.env["COMPOSE_FILE"], *(str(ROOT / file) for file in files)])
        other.env = {**self.env, "COMPOSE_FILE": layers, **env}
        return other

    def tail(self, *services: str) -> str:
        return self.run("logs", "--no-color", "--tail", "40", *services)

    def check_logs(self, *, also_secret: Sequence[str] = ()) -> int:
        """Check all lines of our containers, also stopped ones, against the log contract; return how many there were.

        NATS has a format of its own: its lines must only report no permission violation.
        """
        told = 0
        for part in self.described(stopped=True):
            if part["Service"].startswith("nats"):
                check_refusals(self.log(part["Name"]).splitlines(), of=part["Name"])
            if part["Service"] in OWN_SERVICES:
                said = self.log(part["Name"])
                # It may have been killed in the middle of a line.
                lines = said[: said.rfind("\n") + 1].split("\n")
                told += check_log_lines(lines, of=part["Name"], also_secret=also_secret)
        return told

    def log(self, container: str) -> str:
        """Stdout and stderr of a container, from the engine itself: compose adds formatting for terminals."""
        command = ["docker", "logs", container]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_COMMAND_SECONDS, check=True
        )
        return done.stdout.decode(errors="replace")

    def containers(self, service: str) -> list[str]:
        """The ids of the running containers of a service."""
        return self.run("ps", "--quiet", service).split()

    def described(self, *, stopped: bool = False) -> list[dict[str, Any]]:
        """The entry of every container in `docker compose ps`."""
        told = self.run("ps", *(["--all"] if stopped else []), "--format", "json")
        return [json.loads(line) for line in told.splitlines()]

    def ledger(self, query: str) -> list[list[str]]:
        [postgres] = self.containers("postgres")
        rows = self.docker("exec", postgres, "psql", "-U", "pyoco", "-AtF,", "-c", query)
        return [row.split(",") for row in rows.splitlines()]

    def wait_healthy(self, *, within: float = 60.0) -> None:
        def all_healthy() -> bool:
            return all(part["Health"] in ("healthy", "") for part in self.described())

        wait_until(all_healthy, within=within, what="every container healthy")

    def inspect(self, container: str) -> dict[str, Any]:
        found = subprocess.run(["docker", "inspect", container], capture_output=True, text=True, check=True).stdout
        described: dict[str, Any] = json.loads(found)[0]
        return described

    def docker(self, *arguments: str) -> str:
        return run_command(["docker", *arguments], self.env)

    def run(self, *arguments: str) -> str:
        return run_command(["docker", "compose", *arguments], self.env)


@functools.cache
def build_images() -> None:
    """Build the images once in a session; existing layers are reused."""
    # One process of a session builds, the others then find everything built (a second).
    with (Path(tempfile.gettempdir()) / f"pyoco-fleet-images-{IMAGES_TAG}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run_command(
            ["docker", "compose", "-p", "pyoco-fleet-images", "-f", str(ROOT / "compose.yaml"), "build", "--quiet"],
            {**os.environ, "PYOCO_VERSION": IMAGES_TAG, "PYOCO_REVISION": IMAGES_REVISION},
        )


def run_command(command: Sequence[str], env: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout

"""The fleet in containers, started and stopped with docker compose as an operator does it.

The `DockerCompose` of testcontainers finds the files, containers and ports, and runs commands in containers. What it
lacks is here: settings of a project that operators' scripts get too, options of `up` and `down` (--scale,
--no-recreate, a limit of time), a check that nothing is left, the log contract, and images that are built once.
"""

import fcntl
import functools
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self

import httpx
from testcontainers.compose import ComposeContainer, DockerCompose
from testcontainers.core.docker_client import DockerClient

from ..log_check import check_log_lines, check_refusals
from ..nats_server import free_port
from ..waiting import wait_until

ROOT = Path(__file__).parents[4]
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

    def __init__(self, project: str, *, files: Sequence[str] = ("compose.yaml",), **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=30)
        # Each process of pytest-xdist has its own project.
        self.project = "-".join(filter(None, [project, os.environ.get("PYTEST_XDIST_WORKER")]))
        # Additional options of every `up`.
        self.up_options: list[str] = []
        self._settings: dict[str, str] = {}
        own = {
            "COMPOSE_PROJECT_NAME": self.project,
            "COMPOSE_FILE": ":".join(str(ROOT / file) for file in files),
            "PYOCO_PUBLISH": f"127.0.0.1:{self.port}",
            "PYOCO_VERSION": IMAGES_TAG,
            "PYOCO_COMPOSE_ENV": "/dev/null",
        }
        self.configure(**{**own, **settings})

    def configure(self, **settings: str) -> None:
        """Change variables of compose.yaml and of docker compose itself, for all commands that follow."""
        self._settings = self._settings | settings
        # An --env-file: commands of DockerCompose see no other environment than this process's.
        self._folder = tempfile.TemporaryDirectory(prefix="fleet-compose-")
        env_file = Path(self._folder.name) / "compose.env"
        env_file.write_text("".join(f"{name}='{value}'\n" for name, value in self._settings.items()))
        self.compose = DockerCompose(ROOT, env_file=str(env_file))

    @property
    def env(self) -> dict[str, str]:
        """The environment of operators' scripts, which call docker compose themselves."""
        return {**os.environ, **self._settings}

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
            raise AssertionError(f"{error}\n{self.run('logs', '--no-color', '--tail', '40')}") from error

    def down(self) -> None:
        """Remove the containers, keep the volumes."""
        self.run("down", "--remove-orphans", "--timeout", "30")

    def remove(self) -> None:
        """Remove the containers and the volumes."""
        self.run("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "30")
        of_it = ["--quiet", "--filter", f"label=com.docker.compose.project={self.project}"]
        left = [self.docker("ps", "--all", *of_it), self.docker("volume", "ls", *of_it)]
        assert left == ["", ""], f"containers and volumes of {self.project} that compose left behind: {left}"

    def layered(self, *files: str, **settings: str) -> Self:
        """The same fleet with more layers on it: what they add can be started beside what runs."""
        other = copy(self)
        layers = [self._settings["COMPOSE_FILE"], *(str(ROOT / file) for file in files)]
        other.configure(**{"COMPOSE_FILE": ":".join(layers), **settings})
        return other

    def check_logs(self, *, also_secret: Sequence[str] = ()) -> int:
        """Check all lines of our containers, also stopped ones, against the log contract; return how many there were.

        NATS has a format of its own: its lines must only report no permission violation.
        """
        checked = 0
        for container in self.listed(stopped=True):
            name, service = str(container.Name), str(container.Service)
            if service.startswith("nats"):
                check_refusals(self.log(name).splitlines(), of=name)
            if service in OWN_SERVICES:
                log = self.log(name)
                # It may have been killed in the middle of a line.
                lines = log[: log.rfind("\n") + 1].split("\n")
                checked += check_log_lines(lines, of=name, also_secret=also_secret)
        return checked

    def log(self, container: str) -> str:
        """Stdout and stderr of a container, from the engine itself: compose adds formatting for terminals."""
        log: bytes = _engine().containers.get(container).logs()
        return log.decode(errors="replace")

    def containers(self, service: str) -> list[str]:
        """The ids of the running containers of a service."""
        return [str(container.ID) for container in self.listed() if container.Service == service]

    def listed(self, *, stopped: bool = False) -> list[ComposeContainer]:
        return self.compose.get_containers(include_all=stopped)

    def ledger(self, query: str) -> list[list[str]]:
        rows, _, _ = self.compose.exec_in_container(["psql", "-U", "pyoco", "-AtF,", "-c", query], "postgres")
        return [row.split(",") for row in rows.splitlines()]

    def wait_healthy(self, *, within: float = 60.0) -> None:
        def all_healthy() -> bool:
            return all(container.Health in ("healthy", "") for container in self.listed())

        wait_until(all_healthy, within=within, what="every container healthy")

    def inspect(self, container: str) -> dict[str, Any]:
        inspected: dict[str, Any] = _engine().api.inspect_container(container)
        return inspected

    def docker(self, *arguments: str) -> str:
        return run_command(["docker", *arguments])

    def run(self, *arguments: str) -> str:
        return run_command([*self.compose.docker_compose_command(), *arguments])


@functools.cache
def _engine() -> Any:
    """The engine's Python client, which has no types."""
    return DockerClient().client


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


def run_command(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout

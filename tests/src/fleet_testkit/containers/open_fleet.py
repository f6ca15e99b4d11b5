"""A fleet in containers that acceptance tests use as they use the embedded stack."""

import functools
import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg

from fleet_contracts.names import HEADER_FROM_GATEWAY

from ..nats_server import free_port
from ..nats_users import remember_door
from ..waiting import wait_until
from .compose import ROOT, ComposedFleet

_FILES = ("compose.yaml", "tests/containers/compose.test.yaml")
_SECONDS = 120


class OpenFleet(ComposedFleet):
    """A fleet whose NATS, PostgreSQL and services can be reached without the gateway, from this machine only."""

    def __init__(
        self,
        project: str,
        folder: Path,
        *,
        shared: Path,
        auth: bool = False,
        with_worker: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._nats_port, self._postgres_port = free_port(), free_port()
        self._secrets = folder / "secrets"
        settings = folder / "compose.env"
        settings.write_text("".join(f"{name}={value}\n" for name, value in (env or {}).items()))
        # `env` goes into the settings of the containers, and into the variables of compose.yaml itself.
        super().__init__(
            project,
            files=_FILES,
            FLEET_TEST_NATS_PORT=str(self._nats_port),
            FLEET_TEST_POSTGRES_PORT=str(self._postgres_port),
            FLEET_TEST_SHARED=str(shared),
            **{"PYOCO_WHEEL_SYNC_ENABLED": "0", **(env or {})},
            PYOCO_COMPOSE_ENV=str(settings),
            PYOCO_HTTP_AUTH_MODE="api_key" if auth else "none",
        )
        self.up_options = [] if with_worker else ["--scale", "worker=0"]
        self._keeper = ""

    def up(self, *options: str) -> None:
        super().up(*options)
        # A container with all secrets that keeps running: starting one for every change of users takes seconds.
        hold = ["run", "--detach", "--no-deps", "--entrypoint", "sleep", "secrets", "infinity"]
        self._keeper = self.run(*hold).strip()
        self._fetch_secrets()

    def __exit__(self, failed: object = None, *_: object) -> None:
        try:
            if failed is None:
                # The log contract holds whatever the tests did.
                self.check_logs(also_secret=[self.gateway_secret])
        finally:
            super().__exit__()

    def down(self) -> None:
        self._dismiss_keeper()
        super().down()

    def remove(self) -> None:
        # First, because compose cannot remove the volumes of secrets while this container uses them.
        self._dismiss_keeper()
        super().remove()

    def _dismiss_keeper(self) -> None:
        if self._keeper:
            self.docker("rm", "--force", self._keeper)
            self._keeper = ""

    @functools.cached_property
    def _secrets_command(self) -> list[str]:
        """The command of compose.yaml that makes the secrets."""
        command: list[str] = self.inspect(self._container("secrets"))["Config"]["Entrypoint"]
        return command

    @property
    def nats_url(self) -> str:
        url = f"nats://127.0.0.1:{self._nats_port}"
        remember_door(url, self)
        return url

    @property
    def gateway_secret(self) -> str:
        return (self._secrets / "gateway" / "gateway.secret").read_text().strip()

    def credentials(self, role: str) -> Path:
        return self._secrets / role / "nats.nk"

    def operator_file(self) -> Path:
        return self.credentials("operator")

    def let_in(self, worker_id: str, tags: list[str]) -> Path:
        """Allow a worker to connect as an operator does: add a user and reload NATS."""
        self._change_users("--grant", f"{worker_id}={','.join(tags)}")
        return self._secrets / "operator" / "workers" / f"{worker_id}.nk"

    def send_away(self, worker_id: str) -> None:
        self._change_users("--revoke", worker_id)

    def service_client(self, name: str, *, knows_secret: bool = True) -> httpx.Client:
        host, port = self.compose.get_service_host_and_port(name, 8000)
        headers = {HEADER_FROM_GATEWAY: self.gateway_secret} if knows_secret else {}
        return httpx.Client(base_url=f"http://{host}:{port}", headers=headers, timeout=30)

    def admin(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [*self.compose.docker_compose_command(), "exec", "-T", "auth", "pyoco-server-admin", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS, check=False)

    def pid(self, name: str) -> int:
        return int(self.inspect(self._container(name))["State"]["Pid"])

    def processes(self) -> dict[str, psutil.Process]:
        """Without PostgreSQL's processes: they share memory, so their sizes cannot be added up."""
        names = {str(container.Service) for container in self.listed()} - {"postgres"}
        return {name: psutil.Process(self.pid(name)) for name in names}

    def log(self, name: str) -> str:
        return super().log(self._container(name))

    def logs(self) -> dict[str, str]:
        return {str(container.Name): self.log(str(container.Name)) for container in self.listed(stopped=True)}

    def written(self) -> Iterator[tuple[str, bytes]]:
        """The logs of the containers, and the volumes of NATS and PostgreSQL."""
        for name, said in self.logs().items():
            yield name, said.encode()
        for service, folder in (("nats", "/data"), ("postgres", "/var/lib/postgresql/data")):
            copied = subprocess.run(
                ["docker", "cp", f"{self._container(service)}:{folder}", "-"],
                capture_output=True,
                timeout=_SECONDS,
                check=True,
            )
            yield f"{service}:{folder}", copied.stdout

    def ledger_rows(self, query: str) -> list[tuple[Any, ...]]:
        with self._ledger() as ledger:
            return ledger.execute(query.encode()).fetchall()

    @contextmanager
    def ledger_locked(self) -> Iterator[None]:
        """Block writes by stopping PostgreSQL: it would wait for a lock without limit."""
        self.run("kill", "postgres")
        try:
            yield
        finally:
            self.run("up", "--detach", "--wait", "--no-recreate", "--no-deps", "postgres")

    def start_nats(self) -> None:
        self.run("start", "nats")
        wait_until(self._nats_answers, within=30, what="NATS answering")

    def _nats_answers(self) -> bool:
        return self.compose.get_container("nats").Health == "healthy"

    def _ledger(self) -> "psycopg.Connection[tuple[Any, ...]]":
        password = (self._secrets / "postgres" / "password").read_text().strip()
        return psycopg.connect(
            host="127.0.0.1", port=self._postgres_port, user="pyoco", dbname="pyoco", password=password
        )

    def _container(self, name: str) -> str:
        """The name of a service's container; worker-2 is the second container of the workers."""
        if name.startswith(f"{self.project}-"):
            return name
        service, number = ("worker", name.removeprefix("worker-")) if name.startswith("worker-") else (name, "1")
        return f"{self.project}-{service}-{number}"

    def _change_users(self, *options: str) -> None:
        """Do what `docker compose run secrets` does, in a running container, and reload NATS."""
        self.docker("exec", self._keeper, *self._secrets_command, *options)
        # Twice: the first reload makes a new account known, the second its imports.
        for _ in range(2):
            before = self._reloads()
            # As ops/reload-nats does: after `docker kill`, with any signal, the engine would not restart it.
            self.docker("exec", self._container("nats"), "sh", "-c", "kill -HUP 1")
            wait_until(functools.partial(self._reloaded_since, before), what="NATS reloaded")
        self._fetch_secrets()

    def _reloaded_since(self, before: int) -> bool:
        return self._reloads() > before

    def _reloads(self) -> int:
        return self.log("nats").count("Reloaded server configuration")

    def _fetch_secrets(self) -> None:
        command = ["docker", "exec", self._keeper, "tar", "-C", "/secrets", "-c", "."]
        packed = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for member in archive.getmembers():
                if member.isfile():
                    content = archive.extractfile(member)
                    assert content is not None
                    _write_secret(self._secrets / member.name, content.read())


class NatsContainer:
    """The NATS of a composed fleet, for a test that stops or pauses it."""

    def __init__(self, fleet: OpenFleet) -> None:
        self._fleet = fleet

    def start(self) -> None:
        self._fleet.start_nats()

    def kill(self) -> None:
        self._fleet.run("kill", "nats")

    def pause(self) -> None:
        self._fleet.run("pause", "nats")

    def resume(self) -> None:
        self._fleet.run("unpause", "nats")


def _write_secret(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent)
    os.write(handle, content)
    os.close(handle)
    Path(temporary).replace(file)

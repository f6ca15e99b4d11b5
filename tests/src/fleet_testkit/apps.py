"""A service under test: its application in this process, or the real process on a unix socket."""

import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
from fastapi import FastAPI

from fleet_contracts.names import ANONYMOUS_TENANT, HEADER_API_KEY_ID, HEADER_SCOPES, HEADER_TENANT_ID
from fleet_contracts.scopes import ALL_SCOPES
from fleet_kit.nats.link import NatsLink

from .log_check import check_log_lines, whole_lines
from .nats_links import ready_link
from .programs import Program
from .waiting import eventually, wait_until

# The headers that the gateway adds to every request while authentication is off.
ANONYMOUS = {
    HEADER_TENANT_ID: ANONYMOUS_TENANT,
    HEADER_API_KEY_ID: "",
    HEADER_SCOPES: " ".join(sorted(ALL_SCOPES)),
}


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Run the application's lifespan and yield a client that calls it in this process."""
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):
        yield client


async def until_ready(client: httpx.AsyncClient, *, within: float = 30.0) -> None:
    async def is_ready() -> bool:
        try:
            return (await client.get("/ready")).status_code == 200
        except httpx.TransportError:
            return False

    await eventually(is_ready, within=within, what="the service being ready")


class ServiceProcess:
    """The process of a service with the test's settings, listening on a unix socket; its log is in `folder`."""

    def __init__(self, package: str, folder: Path, **settings: str) -> None:
        # Not in the folder: a socket's path has little room, and pytest's folders have long names.
        self.socket = Path(tempfile.mkdtemp(prefix="f-")) / "service.sock"
        self.log = folder / "service.log"
        self._package = package
        self._settings = settings
        self._process: Program | None = None

    def start(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYOCO_", "OTEL_"))}
        own = {"PYOCO_LOAD_DOTENV": "0", "PYOCO_UDS": str(self.socket), **self._settings}
        with self.log.open("ab") as log:
            self._process = Program([f"{self._package}.main:main"], env=inherited | own, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def kill(self) -> None:
        """Send SIGKILL; the service may be started again."""
        assert self._process
        self._process.kill()
        self._process.wait(timeout=30)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(self.socket)), base_url="http://service", timeout=30
        )

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[httpx.AsyncClient, NatsLink]]:
        """A client with the anonymous identity, and a link to the NATS of its settings."""
        async with self.client() as client, ready_link(self._settings["PYOCO_NATS_URL"]) as link:
            client.headers.update(ANONYMOUS)
            yield client, link

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[httpx.AsyncClient]:
        """`standing`, with a client for it."""
        with self.standing():
            async with self.client() as client:
                yield client

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Start it and wait until it is ready; in the end SIGTERM must stop it with code 0 and leave no socket."""
        self.start()
        try:
            wait_until(self._is_ready, what="the service being ready")
            yield
            assert self._process
            self._process.send_signal(signal.SIGTERM)
            assert self._process.wait(timeout=30) == 0, self.log.read_text()
            assert not self.socket.exists()
            check_log_lines(whole_lines(self.log), of=str(self.log))
        finally:
            self._kill()

    def _is_ready(self) -> bool:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket)), base_url="http://service") as client:
            try:
                return client.get("/ready", timeout=30).status_code == 200
            except httpx.TransportError:
                return False

    def refusal(self) -> str:
        """Start it with invalid settings; return the only line that it logs before it exits with 1."""
        self.start()
        try:
            assert self._process
            assert self._process.wait(timeout=30) == 1
        finally:
            self._kill()
        check_log_lines(whole_lines(self.log), of=str(self.log))
        [line] = self.log.read_text().splitlines()
        assert json.loads(line)["level"] == "CRITICAL"
        return str(json.loads(line)["message"])

    def _kill(self) -> None:
        """Kill the process if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=30)

"""The interface of a fleet for acceptance tests; the embedded stack and containers implement it."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, Self

import httpx
import psutil


class Fleet(Protocol):
    """`with new_fleet(tmp_path) as fleet: fleet.client.post("/runs", …)`"""

    port: int
    url: str
    client: httpx.Client

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def up(self) -> None: ...

    def down(self) -> None:
        """Stop it and keep what it has stored; `up` goes on with that."""

    def wait_healthy(self, *, within: float = ...) -> None: ...

    @property
    def nats_url(self) -> str:
        """The URL of NATS; `nats_users` has the credentials."""

    @property
    def gateway_secret(self) -> str: ...

    def credentials(self, role: str) -> Path:
        """The seed of a role's NATS user."""

    def send_away(self, worker_id: str) -> None:
        """Revoke the credentials of a worker."""

    def service_client(self, name: str, *, knows_secret: bool = True) -> httpx.Client:
        """A client that bypasses the gateway; with or without the gateway's secret."""

    def admin(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`pyoco-server-admin …` as its operator calls it."""

    def pid(self, name: str) -> int: ...

    def processes(self) -> dict[str, psutil.Process]:
        """The first process of every part."""

    def log(self, name: str) -> str: ...

    def logs(self) -> dict[str, str]:
        """The log of every part, by name."""

    def written(self) -> Iterator[tuple[str, bytes]]:
        """All data that the fleet has written to disk, in named pieces."""

    def ledger_rows(self, query: str) -> list[tuple[Any, ...]]:
        """Query the ledger, read-only: only its service may change it."""

    def ledger_locked(self) -> AbstractContextManager[None]:
        """Within this context all writes to the ledger are blocked."""


class MakesFleets(Protocol):
    """The fixture `new_fleet`."""

    def __call__(
        self, folder: Path, *, auth: bool = False, with_worker: bool = True, env: Mapping[str, str] | None = None
    ) -> Fleet: ...


class NatsOfItsOwn(Protocol):
    """The NATS of a fleet, for a test that stops or pauses it."""

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

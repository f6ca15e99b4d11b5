"""What acceptance tests ask of a fleet, whatever it runs in: the embedded stack, or containers."""

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
        """Where a test finds NATS; whom it lets in is known to `nats_users`."""

    @property
    def gateway_secret(self) -> str: ...

    def credentials(self, role: str) -> Path:
        """The seed of a role's NATS user."""

    def send_away(self, worker_id: str) -> None:
        """Take the credentials back from a worker that was let in."""

    def service_client(self, name: str, *, knows_secret: bool = True) -> httpx.Client:
        """Talks to a service past the gateway; without its secret as whoever found the way."""

    def admin(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`pyoco-server-admin …` as its operator calls it."""

    def pid(self, name: str) -> int: ...

    def processes(self) -> dict[str, psutil.Process]:
        """The first process of every part."""

    def log(self, name: str) -> str: ...

    def logs(self) -> dict[str, str]:
        """What every part has said, by the part's name."""

    def written(self) -> Iterator[tuple[str, bytes]]:
        """Everything that it has put on a disk, piece by piece, with a name for each."""

    def ledger_rows(self, query: str) -> list[tuple[Any, ...]]:
        """Read only: a test never changes the ledger behind the service's back."""

    def ledger_locked(self) -> AbstractContextManager[None]:
        """While this lasts nobody can write to the ledger."""


class MakesFleets(Protocol):
    """The fixture `new_fleet`."""

    def __call__(
        self, folder: Path, *, auth: bool = False, with_worker: bool = True, env: Mapping[str, str] | None = None
    ) -> Fleet: ...


class NatsOfItsOwn(Protocol):
    """The NATS of a fleet that a test may take away."""

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

"""Credentials of tests for the NATS of a fleet: the operator's, or new ones of a worker."""

from pathlib import Path
from typing import Protocol

from fleet_contracts.names import WireNames
from fleet_launcher.data_dir.folder import DataFolder
from fleet_launcher.data_dir.nats_users import NatsUsers


class Door(Protocol):
    """Manages the users of a fleet's NATS."""

    def operator_file(self) -> Path | None: ...

    def let_in(self, worker_id: str, tags: list[str]) -> Path | None: ...


# The user management of every fleet in this process, by the URL of its NATS.
_DOORS: dict[str, Door] = {}


def remember_door(nats_url: str, door: Door) -> None:
    _DOORS[nats_url] = door


def remember_stack(nats_url: str, data_dir: Path) -> None:
    remember_door(nats_url, _DoorOfStack(data_dir))


def operator_file(nats_url: str) -> Path | None:
    """The seed of the operator; None for a NATS without users."""
    door = _DOORS.get(nats_url)
    return None if door is None else door.operator_file()


def worker_file(nats_url: str, worker_id: str, tags: list[str]) -> Path | None:
    """Allow a worker to connect; return its seed file, None for a NATS without users."""
    door = _DOORS.get(nats_url)
    return None if door is None else door.let_in(worker_id, tags)


class _DoorOfStack:
    """Manages the NATS users of an embedded stack with the launcher's code."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def operator_file(self) -> Path | None:
        users = self._users()
        return None if users is None else users.role_file("operator")

    def let_in(self, worker_id: str, tags: list[str]) -> Path | None:
        users = self._users()
        if users is None:
            return None
        file = users.grant(worker_id, tags, kind="added")
        assert users.reload_running_nats()
        return file

    def _users(self) -> NatsUsers | None:
        users = NatsUsers.of_stack(DataFolder(self._data_dir), otherwise=WireNames())
        return users if users.are_enforced else None

"""Who a test is on the NATS of a stack: its operator, or a worker that was let in as an operator would do it."""

from pathlib import Path

from fleet_contracts.names import WireNames
from fleet_launcher.folder import DataFolder
from fleet_launcher.nats_users import NatsUsers

# The data dirs of the stacks of this process, by the address of their NATS.
_STACKS: dict[str, Path] = {}


def remember_stack(nats_url: str, data_dir: Path) -> None:
    _STACKS[nats_url] = data_dir


def operator_file(nats_url: str) -> Path | None:
    """The seed of the operator; None for a NATS without users."""
    users = _users(nats_url)
    return None if users is None else users.operator_file


def worker_file(nats_url: str, worker_id: str, tags: list[str]) -> Path | None:
    """Let a worker in, and say where its seed is; None for a NATS without users."""
    users = _users(nats_url)
    if users is None:
        return None
    file = users.grant(worker_id, tags, kind="added")
    assert users.tell_running_nats()
    return file


def _users(nats_url: str) -> NatsUsers | None:
    if (data_dir := _STACKS.get(nats_url)) is None:
        return None
    users = NatsUsers.of_stack(DataFolder.at(data_dir), otherwise=WireNames())
    return users if users.are_in_force else None

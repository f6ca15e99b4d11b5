"""Workers that a stack does not start itself: their NATS credentials, and starting one on this machine."""

import fcntl
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from ..data_dir.folder import DataFolder
from ..data_dir.nats_users import NatsUsers
from ..data_dir.state import read_state
from ..errors import LaunchError
from ..settings import LauncherSettings
from ..stack.environment import environment_of
from ..stack.parts import script, stack_worker_id, worker_folders
from ..stack.ports import without_password
from .console import Console

_MOST_WORKERS_BY_HAND = 1000


def split_tags(tags: str | None, settings: LauncherSettings) -> list[str]:
    given = [tag.strip() for tag in (tags or "").split(",") if tag.strip()]
    return given or settings.worker_tags


def make_credentials(
    folder: DataFolder,
    settings: LauncherSettings,
    console: Console,
    *,
    worker_id: str,
    tags: str | None,
    out: Path | None,
) -> None:
    users = _users(folder, settings)
    wanted = split_tags(tags, settings)
    if out is not None and out.exists():
        raise LaunchError(f"{out} exists already; remove it or choose another file with --out")
    file = users.grant(worker_id, wanted, kind="added", out=out.absolute() if out else None)
    effect = _reload(folder, users)
    url = without_password(nats_url(folder, settings))
    console.say(f"worker {worker_id} may take jobs of {', '.join(wanted)}{effect}; its secret is in {file}")
    console.say(
        f"start it with: pyoco-worker --nats-url {url} --nkey-file {file} --worker-id {worker_id} "
        f"--tags {','.join(wanted)}"
    )


def list_credentials(folder: DataFolder, settings: LauncherSettings, console: Console) -> None:
    for granted in _users(folder, settings).grants():
        whose = "started by the stack" if granted.kind == "stack" else "added"
        console.plain(f"{granted.worker_id}  {','.join(granted.tags)}  {granted.public_key}  {whose}")


def remove_credentials(folder: DataFolder, settings: LauncherSettings, console: Console, *, worker_id: str) -> None:
    users = _users(folder, settings)
    users.revoke(worker_id)
    console.say(f"NATS does not let worker {worker_id} in any more{_reload(folder, users)}")


def run_worker(
    folder: DataFolder,
    settings: LauncherSettings,
    *,
    worker_id: str | None,
    tags: str | None,
    options: Sequence[str],
) -> NoReturn:
    """Replace this process (exec) with a worker of the stack that runs in this folder."""
    if (state := read_state(folder)) is None or not state.launcher_is_running:
        raise LaunchError(
            f"no stack runs in {folder.path}; start it with `./fleet up`, or name another with --data-dir"
        )
    users = NatsUsers.of_stack(folder, otherwise=settings)
    wanted = split_tags(tags, settings)
    worker_id = worker_id or _free_id(folder)
    env = {
        **environment_of(f"worker-{worker_id}", os.environ),
        # Not on the command line, which every user can read: the URL may hold a password.
        "PYOCO_NATS_URL": nats_url(folder, settings),
        **worker_folders(folder, settings, worker_id),
    }
    if users.are_enforced:
        env["PYOCO_NATS_NKEY_FILE"] = str(users.grant(worker_id, wanted, kind="added"))
        users.reload_running_nats()
    command = [
        script("pyoco-worker"),
        *("--worker-id", worker_id, "--tags", ",".join(wanted)),
        *options,
    ]
    sys.stdout.flush()
    os.execve(command[0], command, env)  # noqa: S606 - a program of ours, and no shell is needed


def print_nats_config(folder: DataFolder, settings: LauncherSettings, *, worker_ids: Sequence[str]) -> None:
    """Print the users for a NATS that the operator runs; missing seeds are made."""
    _prepare(folder)
    users = NatsUsers(folder, settings)
    granted = {grant.worker_id for grant in users.grants()}
    for worker_id in worker_ids:
        if worker_id not in granted:
            users.grant(worker_id, settings.worker_tags, kind="stack")
    typer.echo(users.config(), nl=False)


def nats_url(folder: DataFolder, settings: LauncherSettings) -> str:
    """The URL of the NATS that the stack of this folder uses: its own, or the configured one."""
    state = read_state(folder)
    if state is None:
        return settings.nats_url
    own = next((part.address for part in state.parts if part.name == "nats"), None)
    return own or state.nats_url or settings.nats_url


def _users(folder: DataFolder, settings: LauncherSettings) -> NatsUsers:
    _prepare(folder)
    return NatsUsers.of_stack(folder, otherwise=settings)


def _prepare(folder: DataFolder) -> None:
    if closed := folder.prepare():
        typer.echo(closed, err=True)


def _reload(folder: DataFolder, users: NatsUsers) -> str:
    """Make a running NATS reload its users; return a phrase that says when the change takes effect."""
    if users.are_enforced:
        return "" if users.reload_running_nats() else " from the next start on"
    if (state := read_state(folder)) is not None and state.launcher_is_running:
        return ", once its NATS has what `pyoco-server nats-config` prints"
    return " from the next start on"


def _free_id(folder: DataFolder) -> str:
    """The first worker id whose lock is free. The lock survives exec, so the worker holds it while it lives."""
    locks = folder.path / "workers"
    locks.mkdir(exist_ok=True)
    for number in range(1, _MOST_WORKERS_BY_HAND):
        worker_id = stack_worker_id(folder, f"extra-{number}")
        lock = os.open(locks / f"{worker_id}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        os.set_inheritable(lock, True)
        return worker_id
    raise LaunchError("too many workers were started by hand; give this one a name with --worker-id")

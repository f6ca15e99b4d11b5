"""The commands for workers that a stack does not start itself: run one here, let one in from elsewhere."""

import fcntl
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fleet_contracts.wheel import split_tags

from ..data_dir.folder import DataFolder
from ..data_dir.nats_users import NatsUsers
from ..data_dir.state import is_running, read_state
from ..errors import LaunchError
from ..settings import LauncherSettings
from ..stack.environment import environment_of
from ..stack.parts import flow_settings, script, stack_worker_id, worker_folders
from ..stack.ports import without_password
from ..stack.stack import worker_options
from .console import Console
from .options import DataDir

_MOST_WORKERS_BY_HAND = 1000


def worker(
    tags: Annotated[str | None, typer.Option(help="Take jobs with any of these tags, e.g. cpu,gpu.")] = None,
    worker_id: Annotated[str | None, typer.Option(help="Its name; made up when left out.", metavar="NAME")] = None,
    slots: Annotated[int | None, typer.Option(help="Runs at once (one per core).", min=1, metavar="N")] = None,
    flow_resolver: Annotated[
        str | None, typer.Option(help="Where flows come from, as for `up`.", metavar="FUNCTION")
    ] = None,
    flows_dir: Annotated[Path | None, typer.Option(help="Where flows come from, as for `up`.", metavar="DIR")] = None,
    data_dir: DataDir = None,
) -> None:
    """Start one more worker of the stack that runs here, until Ctrl-C."""
    settings = LauncherSettings.load(data_dir=data_dir, flow_resolver=flow_resolver, flows_dir=flows_dir)
    folder = DataFolder(settings.data_dir)
    if not is_running(folder):
        raise LaunchError(
            f"no stack runs in {folder.path}; start it with `./fleet up`, or name another with --data-dir"
        )
    users = NatsUsers.of_stack(folder, otherwise=settings)
    wanted = split_tags(tags) or settings.worker_tags
    worker_id = worker_id or _free_id(folder)
    env = {
        **environment_of(f"worker-{worker_id}", os.environ),
        # Not on the command line, which every user can read: the URL may hold a password.
        "PYOCO_NATS_URL": _nats_url(folder, settings),
        **worker_folders(folder, settings, worker_id),
        **flow_settings(folder, settings),
    }
    if users.are_enforced:
        env["PYOCO_NATS_NKEY_FILE"] = str(users.grant(worker_id, wanted, kind="added"))
        users.reload_running_nats()
    options = worker_options(settings, slots)
    command = [script("pyoco-worker"), "--worker-id", worker_id, "--tags", ",".join(wanted), *options]
    sys.stdout.flush()
    # The worker takes the place of this process.
    os.execve(command[0], command, env)  # noqa: S606 - a program of ours, and no shell is needed


def worker_credentials(
    worker_id: Annotated[
        str | None, typer.Option(help="Make credentials for the worker of this name.", metavar="NAME")
    ] = None,
    tags: Annotated[str | None, typer.Option(help="It may take jobs with these tags, e.g. cpu,gpu.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write its secret (a file in the data dir).", metavar="FILE")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the workers that NATS lets in.")] = False,
    remove: Annotated[str | None, typer.Option(help="Do not let this worker in any more.", metavar="NAME")] = None,
    data_dir: DataDir = None,
) -> None:
    """Let a worker on this or another machine take jobs from the stack's NATS, or stop doing so."""
    settings = LauncherSettings.load(data_dir=data_dir)
    folder, console = DataFolder(settings.data_dir), Console()
    if sum((worker_id is not None, show, remove is not None)) != 1:
        raise LaunchError("give one of --worker-id NAME, --list, --remove NAME")
    _prepare(folder)
    users = NatsUsers.of_stack(folder, otherwise=settings)
    if worker_id is not None:
        wanted = split_tags(tags) or settings.worker_tags
        if out is not None and out.exists():
            raise LaunchError(f"{out} exists already; remove it or choose another file with --out")
        file = users.grant(worker_id, wanted, kind="added", out=out.absolute() if out else None)
        effect = _reload(folder, users)
        url = without_password(_nats_url(folder, settings))
        console.say(f"worker {worker_id} may take jobs of {', '.join(wanted)}{effect}; its secret is in {file}")
        console.say(
            f"start it with: pyoco-worker --nats-url {url} --nkey-file {file} --worker-id {worker_id} "
            f"--tags {','.join(wanted)}"
        )
    elif remove is not None:
        users.revoke(remove)
        console.say(f"NATS does not let worker {remove} in any more{_reload(folder, users)}")
    else:
        for granted in users.grants():
            whose = "started by the stack" if granted.kind == "stack" else "added"
            console.plain(f"{granted.worker_id}  {','.join(granted.tags)}  {granted.public_key}  {whose}")


def nats_config(data_dir: DataDir = None) -> None:
    """Print the users of this stack as a NATS server's configuration, for a NATS that you run yourself.

    The parts use them when they are started with PYOCO_NATS_AUTH=nkey; their secrets stay in the data dir.
    """
    settings = LauncherSettings.load(data_dir=data_dir)
    folder = DataFolder(settings.data_dir)
    _prepare(folder)
    users = NatsUsers(folder, settings)
    granted = {grant.worker_id for grant in users.grants()}
    count = settings.workers if settings.workers is not None else 1
    for number in range(1, count + 1):
        if (worker_id := stack_worker_id(folder, number)) not in granted:
            users.grant(worker_id, settings.worker_tags, kind="stack")
    typer.echo(users.config(), nl=False)


def _nats_url(folder: DataFolder, settings: LauncherSettings) -> str:
    """The URL of the NATS that the stack of this folder uses: its own, or the configured one."""
    state = read_state(folder)
    if state is None:
        return settings.nats_url
    own = next((part.address for part in state.parts if part.name == "nats"), None)
    return own or state.nats_url or settings.nats_url


def _prepare(folder: DataFolder) -> None:
    if closed := folder.prepare():
        typer.echo(closed, err=True)


def _reload(folder: DataFolder, users: NatsUsers) -> str:
    """Make a running NATS reload its users; return a phrase that says when the change takes effect."""
    if users.are_enforced:
        return "" if users.reload_running_nats() else " from the next start on"
    if is_running(folder):
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

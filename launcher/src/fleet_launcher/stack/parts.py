"""The part table: what a stack consists of. Adding a part is adding one entry."""

import json
import os
import platform
import re
import shutil
import signal
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..data_dir.folder import DataFolder
from ..data_dir.nats_users import NatsUsers
from ..errors import LaunchError
from ..settings import LauncherSettings
from . import ports
from .health import Check, WorkerRegistry, gateway_health, service_health, why_nats_is_away, worker_health

WORKER_PREFIX = "worker-"
SERVICES = {
    "auth": "fleet_auth",
    "runs-api": "fleet_runs_api",
    "workers-api": "fleet_workers_api",
    "wheels-api": "fleet_wheels_api",
}


@dataclass(frozen=True, slots=True)
class NatsAccess:
    """How the parts connect to NATS: its URL, and the credentials of each part."""

    url: str
    # None: NATS has no users, or the operator configures the credentials of the parts.
    users: NatsUsers | None

    def env(self, role: str) -> dict[str, str]:
        return self._env(self.users.role_file(role) if self.users else None)

    def worker_env(self, worker_id: str) -> dict[str, str]:
        return self._env(self.users.worker_file(worker_id) if self.users else None)

    def _env(self, seed: Path | None) -> dict[str, str]:
        credentials = {} if seed is None else {"PYOCO_NATS_NKEY_FILE": str(seed)}
        return {"PYOCO_NATS_URL": self.url, **credentials}


@dataclass(frozen=True, slots=True)
class StopStep:
    """Send the signal and wait; after the last step the process is killed."""

    signal: signal.Signals
    seconds: float


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    command: Sequence[str]
    health: Check
    address: str
    # A stage starts when the parts of the one before are healthy, and stops when those of the one before are gone.
    start_stage: int
    stop_stage: int
    env: Mapping[str, str] = field(default_factory=dict)
    stop: Sequence[StopStep] = (StopStep(signal.SIGTERM, 10.0),)
    data: Path | None = None
    # The parent-death signal: sent by the kernel when the launcher dies.
    death_signal: signal.Signals = signal.SIGKILL
    # A stop waits for its work, and the console says so.
    finishes_work: bool = False

    @property
    def stop_seconds(self) -> float:
        return sum(step.seconds for step in self.stop)


def nats_part(folder: DataFolder, settings: LauncherSettings, port: int) -> Part:
    url = f"nats://{ports.reachable(settings.nats_host)}:{port}"
    return Part(
        name="nats",
        command=[nats_binary(settings), "-c", str(folder.nats_config)],
        health=lambda _: why_nats_is_away(url),
        address=url,
        start_stage=0,
        stop_stage=3,
        stop=(StopStep(signal.SIGTERM, 15.0),),
        data=folder.nats_store,
    )


def service_parts(folder: DataFolder, settings: LauncherSettings, nats: NatsAccess) -> list[Part]:
    # The path of a secret that the stack has made: this user's processes can read an environment. The services read
    # one of the operator from the same setting as we do.
    own_secret = settings.gateway_secret is None
    made_secret = {"PYOCO_GATEWAY_SECRET_FILE": str(folder.gateway_secret)} if own_secret else {}
    return [
        Part(
            name=name,
            command=[sys.executable, "-m", module],
            health=partial(service_health, folder.socket(name)),
            address=f"unix:{folder.socket(name)}",
            start_stage=1,
            stop_stage=2,
            env={
                "PYOCO_UDS": str(folder.socket(name)),
                **nats.env(name),
                **_ledger(name, folder, settings),
                "PYOCO_HTTP_AUTH_MODE": settings.http_auth_mode,
                "PYOCO_DASHBOARD_LANG": settings.dashboard_lang,
                "PYOCO_WORKER_START_COMMAND": folder.command("worker --tags {tag}"),
                "PYOCO_WHEEL_UPLOAD_DIR": str((settings.wheel_upload_dir or folder.path).absolute()),
                **made_secret,
            },
            data=folder.runs_database if name == "runs-api" and not settings.runs_database_url else None,
        )
        for name, module in SERVICES.items()
    ]


def _ledger(service: str, folder: DataFolder, settings: LauncherSettings) -> dict[str, str]:
    """The URL of the ledger, for runs-api only: it may hold a password."""
    if service != "runs-api":
        return {}
    return {"PYOCO_RUNS_DATABASE_URL": settings.runs_database_url or f"sqlite:///{folder.runs_database}"}


def gateway_part(folder: DataFolder, command: Sequence[str], url: str) -> Part:
    return Part(
        name="gateway",
        command=command,
        health=partial(gateway_health, url),
        address=url,
        # The gateway starts last, when the services behind it are healthy.
        start_stage=2,
        stop_stage=1,
        # SIGQUIT lets open requests finish. Event streams never would, so SIGTERM follows.
        stop=(StopStep(signal.SIGQUIT, 2.0), StopStep(signal.SIGTERM, 3.0)),
        data=folder.gateway,
        # After SIGKILL nginx's master would leave its workers behind; on SIGTERM it ends them.
        death_signal=signal.SIGTERM,
    )


def worker_part(
    folder: DataFolder,
    settings: LauncherSettings,
    nats: NatsAccess,
    registry: WorkerRegistry,
    *,
    number: int,
    options: Sequence[str],
) -> Part:
    worker_id = stack_worker_id(folder, number)
    return Part(
        name=f"{WORKER_PREFIX}{number}",
        command=[script("pyoco-worker"), "--worker-id", worker_id, *options],
        health=partial(worker_health, registry, worker_id),
        address=f"{worker_id} at {ports.without_password(nats.url)}",
        start_stage=1,
        stop_stage=0,
        env={
            **worker_folders(folder, settings, worker_id),
            **flow_settings(folder, settings),
            **nats.worker_env(worker_id),
            **({"PYOCO_MONITOR_PORT": str(settings.metrics_port + number)} if settings.metrics_port else {}),
        },
        stop=(StopStep(signal.SIGTERM, settings.worker_stop_grace_sec + 5.0),),
        data=folder.worker(worker_id),
        finishes_work=True,
    )


def worker_folders(folder: DataFolder, settings: LauncherSettings, worker_id: str) -> dict[str, str]:
    """Folders in the data dir; none if the runners' user cannot enter it, then the worker chooses its own."""
    if settings.runner_user is not None:
        return {}
    own = folder.worker(worker_id)
    return {"PYOCO_WORKER_DIR": str(own), "PYOCO_WHEEL_SYNC_DIR": str(own / "wheels")}


def flow_settings(folder: DataFolder, settings: LauncherSettings) -> dict[str, str]:
    """How a worker of the stack loads its flows."""
    env = {"PYOCO_FLOWS_RELOAD": str(int(settings.flows_reload))}
    if settings.flow_env_file is not None:
        env["PYOCO_FLOW_ENV_FILE"] = str(settings.flow_env_file.absolute())
    # If the runners' user cannot enter the data dir, the worker chooses a folder itself.
    if settings.runner_user is None:
        env["PYOCO_FLOW_LIBRARIES_DIR"] = str(folder.libraries)
    return env


def stack_worker_id(folder: DataFolder, number: int | str) -> str:
    """The id of a worker, the same at every start."""
    return f"{_host_name()}-{folder.fingerprint[:4]}-{number}"


def write_nats_config(folder: DataFolder, settings: LauncherSettings, port: int, *, room: int) -> None:
    store = json.dumps(str(folder.nats_store), ensure_ascii=False)
    host = f"[{settings.nats_host}]" if ":" in settings.nats_host else settings.nats_host
    # max_file_store is set, because NATS would take the space that is free when it starts: started on a full disk it
    # would store no message, even when there is space again.
    folder.nats_config.write_text(
        f"# Written at every start.\n"
        f"listen: {json.dumps(f'{host}:{port}')}\n"
        f"jetstream {{ store_dir: {store}, max_file_store: {room}, sync_interval: {settings.nats_sync_interval} }}\n"
        f"include {folder.nats_users.name}\n"
    )


def nats_binary(settings: LauncherSettings) -> str:
    if settings.nats_server_bin:
        if found := shutil.which(settings.nats_server_bin):
            return found
        raise LaunchError(
            f"PYOCO_NATS_SERVER_BIN={settings.nats_server_bin!r} is not a program; correct it or unset it"
        )
    return script("nats-server")


def script(name: str) -> str:
    """The path of a program: of this Python environment, else of PATH."""
    search = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))
    if found := shutil.which(name, path=search):
        return found
    raise LaunchError(f"the program {name} is missing; install the locked packages again (remove .venv, run ./fleet)")


def _host_name() -> str:
    # A worker's id is a key in KV: letters, digits, dash and underscore are safe everywhere.
    return re.sub(r"[^A-Za-z0-9_-]+", "-", platform.node().partition(".")[0])[:40].strip("-") or "host"

"""The plan of a stack: its parts, decided from the settings and checked before anything is started."""

import asyncio
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fleet_gateway.config import GatewayConfig
from fleet_gateway.render import GatewayError, nginx_command, render

from ..data_dir.disk import check_disk, check_room, nats_room
from ..data_dir.folder import DataFolder
from ..data_dir.gateway_secret import gateway_secret
from ..data_dir.last_start import check_start
from ..data_dir.nats_users import NatsUsers
from ..errors import LaunchError
from ..settings import LauncherSettings
from . import ports
from .health import WorkerRegistry, why_nats_is_away
from .parts import (
    NatsAccess,
    Part,
    gateway_part,
    nats_part,
    service_parts,
    stack_worker_id,
    worker_part,
    write_nats_config,
)

_USUAL_KEY_HEADER = "X-API-Key"
_FIRST_EXAMPLE = "hello"
_NATS_WAIT_SECONDS = 5.0
_NATS_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class StackPlan:
    folder: DataFolder
    settings: LauncherSettings
    with_nats: bool
    workers: int
    slots: int | None = None

    @property
    def url(self) -> str:
        return ports.browser_url(self.settings.host, self.settings.port)

    def check(self) -> list[str]:
        """Make the data dir; raise LaunchError for what would fail later or unnoticed, return warnings."""
        warnings = [
            self.folder.prepare(),
            *check_start(self.folder, self.settings),
            check_disk(self.folder, self.settings),
            check_room(self.folder, self.settings) if self.with_nats else None,
        ]
        return [warning for warning in warnings if warning is not None]

    async def build(self) -> list[Part]:
        """Check ports and NATS, write the configuration files, return the part table."""
        ports.check_gateway_port(self.settings.host, self.settings.port)
        if self.settings.metrics_port is not None:
            ports.check_metrics_ports(self.settings.metrics_port, count=1 + self.workers)
        nats = []
        users = self._nats_users()
        if self.with_nats:
            port = ports.nats_port(
                self.folder.nats_port, host=self.settings.nats_host, wanted=self.settings.nats_port
            )
            nats = [nats_part(self.folder, self.settings, port)]
            write_nats_config(self.folder, self.settings, port, room=nats_room(self.folder))
            access = NatsAccess(nats[0].address, users)
        else:
            access = NatsAccess(self.settings.nats_url, users)
            await reach_nats(access.url)
        registry, options = self._worker_registry(), worker_options(self.settings, self.slots)
        return [
            *nats,
            *service_parts(self.folder, self.settings, access),
            gateway_part(self.folder, self._gateway_command(), self.url),
            *(
                worker_part(self.folder, self.settings, access, registry, number=number, options=options)
                for number in range(1, self.workers + 1)
            ),
        ]

    async def example_commands(self) -> list[str]:
        """Example commands for the user: a submit that works, if a worker of the stack has a flow."""
        lines, options = [], []
        if self.settings.http_auth_mode == "api_key":
            if self.settings.http_api_key_header != _USUAL_KEY_HEADER:
                options = ["--api-key-header", self.settings.http_api_key_header]
            create = self.folder.command(
                "admin api-key create --tenant acme --scopes runs:read,runs:write,workers:read"
            )
            lines.append(f"make a key: export PYOCO_API_KEY=$({create})")
        flow = await self._some_flow()
        if flow is None:
            return [*lines, f"try: {self.folder.command(shlex.join(['workers', *options]))}"]
        if flow == _FIRST_EXAMPLE and self.settings.flows_dir is None:
            options += ["-p", "name=Ada"]
        if self.settings.default_tag not in self.settings.worker_tags:
            options += ["--tag", self.settings.worker_tags[0]]
        # A name may begin with a dash.
        name = [flow] if flow[0].isalnum() else [f"--flow-name={flow}"]
        return [*lines, f"try: {self.folder.command(shlex.join(['submit', *name, *options, '--follow']))}"]

    async def _some_flow(self) -> str | None:
        """The name of a flow from the record of the stack's first worker."""
        if not self.workers:
            return None
        worker = await self._worker_registry().one(stack_worker_id(self.folder, 1))
        flows = worker.flows if worker is not None else []
        return _FIRST_EXAMPLE if _FIRST_EXAMPLE in flows else next(iter(flows), None)

    def _worker_registry(self) -> WorkerRegistry:
        return WorkerRegistry(self.folder.socket("workers-api"), gateway_secret(self.folder, self.settings))

    def _nats_users(self) -> NatsUsers | None:
        """Set up the NATS users of the parts: enforced by the stack's own NATS, left to the operator for another."""
        users = NatsUsers(self.folder, self.settings)
        wants_users = (self.settings.nats_auth or ("nkey" if self.with_nats else "off")) == "nkey"
        if wants_users:
            worker_ids = [stack_worker_id(self.folder, number) for number in range(1, self.workers + 1)]
            users.grant_stack_workers(worker_ids, self.settings.worker_tags)
        if not self.with_nats:
            users.leave_to_operator()
        else:
            users.adopt_store()
            if wants_users:
                users.enforce()
            else:
                users.allow_anonymous()
        return users if wants_users else None

    def _gateway_command(self) -> list[str]:
        """Write nginx's configuration; return the command that runs it in the foreground."""
        try:
            config = GatewayConfig(
                host=self.settings.host,
                port=self.settings.port,
                allowed_hosts=tuple(self.settings.allowed_hosts),
                metrics_port=self.settings.metrics_port,
                runs_upstream=f"unix:{self.folder.socket('runs-api')}",
                workers_upstream=f"unix:{self.folder.socket('workers-api')}",
                wheels_upstream=f"unix:{self.folder.socket('wheels-api')}",
                auth_upstream=f"unix:{self.folder.socket('auth')}",
                temp_dir=self.folder.gateway_temp,
                dashboard_lang=self.settings.dashboard_lang,
                api_key_header=self.settings.http_api_key_header,
                secret=gateway_secret(self.folder, self.settings),
                wheel_max_bytes=self.settings.wheel_max_bytes,
            )
            return nginx_command(render(config, self.folder.gateway))
        except ValidationError as error:
            raise LaunchError(f"the gateway cannot be set up: {error.errors()[0]['msg']}") from error
        except GatewayError as error:
            raise LaunchError(f"the gateway cannot be set up: {error}") from error


def worker_options(settings: LauncherSettings, slots: int | None) -> Sequence[str]:
    """The options of a worker's command line: its slots and the source of its flows."""
    options = ["--slots", str(slots)] if slots is not None else []
    if settings.flow_resolver:
        return [*options, "--flow-resolver", settings.flow_resolver]
    if flows_dir := settings.flows_dir or _examples():
        return [*options, "--flows-dir", str(flows_dir)]
    return options


async def reach_nats(url: str) -> None:
    """Wait a few seconds for a NATS that the stack does not start; LaunchError if it does not answer."""
    deadline = time.monotonic() + _NATS_WAIT_SECONDS
    while (reason := await why_nats_is_away(url)) is not None:
        if time.monotonic() > deadline:
            raise LaunchError(
                f"NATS at {ports.without_password(url)} cannot be reached ({reason}); "
                "start it, name another with --nats-url, or add --with-nats to start one here"
            )
        await asyncio.sleep(_NATS_LOOK_SECONDS)


def _examples() -> Path | None:
    """The folder of the example flows: in the current directory, else in the repository."""
    for folder in (Path("examples"), Path(__file__).parents[4] / "examples"):
        if folder.is_dir():
            return folder.absolute()
    return None

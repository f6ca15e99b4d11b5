"""The command `pyoco-worker`."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from fleet_contracts.log_events import SERVICE_WORKER
from fleet_contracts.nats_roles import WORKER_API
from fleet_contracts.problems import Problem
from fleet_kit.logs.command import say_failure
from fleet_kit.logs.events import log_feature_flags
from fleet_kit.logs.setup import configure_logging, exception_fields
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.metrics import NatsMetrics
from fleet_kit.settings import SettingsError
from fleet_kit.telemetry.monitor import MonitorUnusable, monitored
from fleet_kit.telemetry.setup import configure_tracing, stop_tracing

from .agent.credentials import NoCredentials, taken_from
from .agent.loop import Agent
from .boundary.workspace import FolderUnreachable, runs_folder, worker_folder
from .job.telemetry.metrics import WorkerMetrics
from .pool import leftovers
from .pool.pool import RunnersUnusable
from .presence.record import NotOurs
from .settings import WorkerSettings
from .sources.env_file import EnvFileUnusable, read_env_file
from .sources.own_flows import OwnFlows
from .wheels.home import WheelFolderUnusable, WheelHome

logger = logging.getLogger(__name__)

# Errors that end the worker after logging was set up.
_UNUSABLE = (RunnersUnusable, NotOurs, WheelFolderUnusable, FolderUnreachable, MonitorUnusable, EnvFileUnusable)
_EXAMPLE = "pyoco-worker --nats-url nats://127.0.0.1:4222 --tags default --flows-dir examples"

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class BadArguments(Exception):
    """The command line cannot be used."""


@app.command()
def work(
    nats_url: Annotated[str | None, typer.Option(help="NATS server, e.g. nats://127.0.0.1:4222.")] = None,
    nkey_file: Annotated[
        Path | None, typer.Option(help="Who this worker is on NATS: the file of `pyoco-server worker-credentials`.")
    ] = None,
    tags: Annotated[str | None, typer.Option(help="Take jobs with any of these tags, e.g. cpu,gpu.")] = None,
    worker_id: Annotated[str | None, typer.Option(help="Name in the registry; default: host name and pid.")] = None,
    slots: Annotated[int | None, typer.Option(help="Runs at once, each in its own process; default: cores.")] = None,
    flow_resolver: Annotated[
        str | None,
        typer.Option(help="Function from name to Flow: module:function or path/to/file.py:function."),
    ] = None,
    flows_dir: Annotated[
        Path | None, typer.Option(help="Folder whose *.py files define flows; default: ./examples if it exists.")
    ] = None,
    flow_env: Annotated[
        Path | None,
        typer.Option(help="File of KEY=VALUE lines: variables for flows alone, whose values are not shown."),
    ] = None,
    reload: Annotated[
        bool | None, typer.Option(help="Reload the flows when a file of their folder changes; SIGHUP always does.")
    ] = None,
    wheel_sync: Annotated[
        bool | None,
        typer.Option(help="Install the wheels of the fleet's registry that are meant for these tags, and follow it."),
    ] = None,
) -> None:
    """Execute Pyoco flows for a fleet until stopped.

    Every option can also be given as an environment variable or in .env, e.g. PYOCO_NATS_URL;
    options win. SIGTERM or Ctrl-C lets running work finish, a second one hands it back at once.
    """
    options = {
        "nats_url": nats_url,
        "nats_nkey_file": nkey_file,
        "tags": tags,
        "worker_id": worker_id,
        "slots": slots,
        "flow_resolver": flow_resolver,
        "flows_dir": flows_dir,
        "flow_env_file": flow_env,
        "flows_reload": reload,
        "wheel_sync_enabled": None if wheel_sync is None else "1" if wheel_sync else "0",
    }
    with _settings(options) as settings:
        if settings.flow_resolver is None:
            folder = settings.find_flows_dir()
            if folder is None and not settings.syncs_wheels:
                raise BadArguments("no flows: give --flow-resolver, --flows-dir or --wheel-sync")
            if folder is not None and not folder.is_dir():
                raise BadArguments(f"the flows folder {folder} does not exist")
        if settings.flow_env_file is not None:
            read_env_file(settings.flow_env_file)
        configure_logging(service=SERVICE_WORKER, component="worker", settings=settings, worker_id=settings.worker_id)
        log_feature_flags(logger, settings, "wheel_sync_enabled", "dlq_publish_execution_error")
        tracing = configure_tracing("worker")
        leftovers.end_with_this_process()
        # What is loaded now stays until the end: a worker stops with 0.1 s less of CPU time.
        gc.freeze()
        try:
            stopped_by = uvloop.run(_serve(settings))
        except _UNUSABLE as error:
            if sys.stderr.isatty():
                raise  # on a terminal, main() prints the message
            logger.critical("%s", error, extra=exception_fields(error))
            raise typer.Exit(1) from error
        finally:
            stop_tracing(tracing)
    raise typer.Exit(130 if stopped_by is signal.SIGINT else 0)


@contextmanager
def _settings(options: dict[str, Any]) -> Iterator[WorkerSettings]:
    """The settings; with a credentials folder, also the worker id and NATS user that it has locked there."""
    try:
        settings = WorkerSettings.load(**options)
        if settings.worker_credentials_dir is None:
            yield settings
            return
        with taken_from(settings.worker_credentials_dir) as own_file:
            yield WorkerSettings.load(**options | {"worker_id": own_file.stem, "nats_nkey_file": own_file})
    except SettingsError as error:
        raise BadArguments(str(error)) from error


async def _serve(settings: WorkerSettings) -> signal.Signals:
    account = settings.runner_start.account
    if account is not None:
        os.umask(0o022)  # the runners' user must be able to read installed wheels
    with (
        worker_folder(settings.worker_dir, account) as folder,
        runs_folder(folder, account) as runs_dir,
        _wheel_home(settings, folder) as wheel_home,
        OwnFlows.of(settings, folder) as own_flows,
    ):
        # A worker with an nkey has its own NATS account, which sees the fleet's JetStream API under another prefix.
        apis = (WORKER_API, "$JS.API") if settings.nats_nkey is not None else ("$JS.API",)
        async with NatsLink(settings, name=f"pyoco-worker {settings.worker_id}", api_prefixes=apis) as link:
            metrics = WorkerMetrics(revision=settings.revision, max_flows=settings.metrics_max_flows)
            NatsMetrics(link, metrics.registry, component="worker")
            with _monitored(settings, link, metrics):
                return await Agent(settings, link, runs_dir, metrics, own_flows, wheel_home).run()


def _monitored(settings: WorkerSettings, link: NatsLink, metrics: WorkerMetrics) -> AbstractContextManager[object]:
    if settings.monitor_port is None:
        return nullcontext()

    def waiting_for() -> dict[str, str]:
        return {} if (reason := link.down_because) is None else {"nats": reason}

    return monitored(settings.monitor_host, settings.monitor_port, metrics.registry, waiting_for)


def _wheel_home(settings: WorkerSettings, folder: Path) -> AbstractContextManager[WheelHome | None]:
    if not settings.syncs_wheels:
        return nullcontext()
    account, wanted = settings.runner_start.account, settings.wheel_sync_dir
    if account is not None and "wheel_sync_dir" not in settings.model_fields_set:
        wanted = folder / "wheels"
    home = WheelHome.taken(wanted)
    if account is not None and not account.can_reach(wanted):
        raise WheelFolderUnusable(
            f"PYOCO_WHEEL_SYNC_DIR={wanted} cannot be reached by the user {account.name} (PYOCO_RUNNER_USER); let "
            "that user enter the folders above it, or unset it"
        )
    return home


def main() -> None:
    # Only the owner may read the folders of runs and wheels.
    os.umask(0o077)
    try:
        code = app(standalone_mode=False)
    except (BadArguments, typer.TyperException) as error:
        problem = Problem.INVALID_ARGUMENT
        reason = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        code = _fail(f"{reason.rstrip('.')}; example: {_EXAMPLE} ({problem.err_id})")
    except (*_UNUSABLE, NoCredentials) as error:
        code = _fail(str(error))
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _fail(sentence: str) -> int:
    say_failure(sentence, program="pyoco-worker", service=SERVICE_WORKER, component="worker")
    return 1

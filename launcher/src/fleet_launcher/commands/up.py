"""The command `up`: starts a stack, in the foreground or in the background."""

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fleet_contracts.log_events import SERVICE_LAUNCHER
from fleet_kit.logs.setup import configure_logging, exception_fields
from fleet_kit.settings import FleetSettings

from ..data_dir.folder import DataFolder
from ..data_dir.last_start import remember_start
from ..errors import FAILURES
from ..settings import AuthMode, DashboardLang, LauncherSettings
from ..stack.stack import StackPlan
from .console import Console
from .detach import READY, Report, start_detached
from .launch import run_stack
from .log_console import LogConsole
from .options import DataDir

# The launcher's logger, not this module's: these are the launcher's own messages.
logger = logging.getLogger("fleet_launcher")

_gateway_option = partial(typer.Option, rich_help_panel="Gateway")
_worker_option = partial(typer.Option, rich_help_panel="Workers")


def up(
    with_nats: Annotated[
        bool, typer.Option("--with-nats", "--with-nats-bootstrap", help="Start a NATS of the stack's own.")
    ] = False,
    with_worker: Annotated[bool, typer.Option("--with-worker", help="Start a worker; see --workers.")] = False,
    data_dir: DataDir = None,
    nats_url: Annotated[
        str | None,
        typer.Option(help="Use this NATS and start none (PYOCO_NATS_URL without --with-nats).", metavar="URL"),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background once all is healthy.")] = False,
    start_timeout: Annotated[
        float | None, typer.Option(help="How long the parts may take to get healthy (60).", metavar="SEC")
    ] = None,
    host: Annotated[str | None, _gateway_option(help="Address to listen on (127.0.0.1).", metavar="HOST")] = None,
    port: Annotated[
        int | None, _gateway_option(help="Port to listen on (8000).", min=1, max=65535, metavar="N")
    ] = None,
    metrics_port: Annotated[
        int | None,
        _gateway_option(
            help="Let a Prometheus on this machine scrape the services on this port, the workers on the next ones.",
            min=1,
            max=65000,
            metavar="N",
        ),
    ] = None,
    auth: Annotated[
        AuthMode | None,
        _gateway_option(help="Whether callers need an API key (none, where no other machine reaches the gateway)."),
    ] = None,
    dashboard_lang: Annotated[DashboardLang | None, _gateway_option(help="Language of the dashboard (auto).")] = None,
    workers: Annotated[int | None, _worker_option(help="How many; 0 starts none.", min=0, metavar="N")] = None,
    slots: Annotated[
        int | None, _worker_option(help="Runs that each executes at once (one per core).", min=1, metavar="N")
    ] = None,
    flow_resolver: Annotated[
        str | None,
        _worker_option(
            help="Where flows come from: a function, module:function or path/to/file.py:function.",
            metavar="FUNCTION",
        ),
    ] = None,
    flows_dir: Annotated[
        Path | None, _worker_option(help="Where flows come from: every *.py of a folder (examples).", metavar="DIR")
    ] = None,
    flow_env: Annotated[
        Path | None,
        _worker_option(help="Variables for flows alone: a file of KEY=VALUE lines; not shown.", metavar="FILE"),
    ] = None,
    reload: Annotated[
        bool | None,
        _worker_option("--reload/--no-reload", help="Reload flows when a file of their folder changes (--reload)."),
    ] = None,
    report_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start the stack: the services behind the gateway, and with the options NATS and workers.

    It runs until Ctrl-C. Options win over PYOCO_* variables of the environment, those over the file .env.
    """
    report = Report(report_fd)
    in_background = report_fd is not None
    if in_background:
        _log_to_stdout(FleetSettings.only_of_logging())
    console = LogConsole() if in_background else Console(steady=True)
    try:
        settings = LauncherSettings.load(
            host=host,
            port=port,
            metrics_port=metrics_port,
            data_dir=data_dir,
            workers=workers,
            http_auth_mode=auth,
            dashboard_lang=dashboard_lang,
            nats_url=nats_url,
            flow_resolver=flow_resolver,
            flows_dir=flows_dir,
            flow_env_file=flow_env,
            flows_reload=reload,
            start_timeout_sec=start_timeout,
        )
        folder = DataFolder(settings.data_dir)
        plan = StackPlan(
            folder,
            settings,
            with_nats=with_nats and nats_url is None,
            workers=settings.workers if settings.workers is not None else int(with_worker),
            slots=slots,
        )
        for sentence in plan.check():
            console.plain(sentence)
        if detach and not in_background:
            start_detached(folder, sys.argv[1:], console)
            return
        if in_background:
            _log_to_stdout(settings)

        def when_ready() -> None:
            remember_start(folder, settings)
            report.write(READY)

        code = run_stack(plan, console=console, when_ready=when_ready)
    except FAILURES as error:
        report.write(str(error))
        if not in_background:
            raise
        logger.critical("%s", error, extra=exception_fields(error))
        code = 1
    raise typer.Exit(code)


def _log_to_stdout(settings: FleetSettings) -> None:
    configure_logging(service=SERVICE_LAUNCHER, component="launcher", settings=settings)

"""The `pyoco-server` command line: `up`, `status`, `logs`, `down`, and commands for additional workers."""

import logging
import os
import sys
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from fleet_contracts.log_events import SERVICE_LAUNCHER
from fleet_contracts.problems import Problem
from fleet_kit.logs.setup import configure_logging, exception_fields
from fleet_kit.logs.text import is_coloured
from fleet_kit.privacy import keep_private
from fleet_kit.settings import FleetSettings, SettingsError

from .commands.console import Console
from .commands.detach import Report, start_detached
from .commands.down import stop_stack
from .commands.launch import INTERRUPTED_EXIT_CODE, run_stack
from .commands.log_console import LogConsole
from .commands.more_workers import (
    list_credentials,
    make_credentials,
    print_nats_config,
    remove_credentials,
    run_worker,
)
from .commands.status import show_status
from .data_dir.folder import DataFolder
from .data_dir.last_start import remember_start
from .errors import LaunchError
from .logs.files import follow, for_people, in_order_of_time, logs_of
from .settings import LauncherSettings
from .stack.parts import stack_worker_id
from .stack.stack import StackPlan, worker_options

logger = logging.getLogger(__name__)

# Reported as one sentence, without a traceback. An OSError is about a file in the data dir and names it.
_FAILURES = (LaunchError, SettingsError, OSError)
_STOPPED_EXIT_CODE = 3
_USAGE_EXIT_CODE = 2

app = typer.Typer(
    help="Run Pyoco flows across machines: starts and watches the whole system on this one.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


class AuthMode(StrEnum):
    none = "none"
    api_key = "api_key"


class DashboardLang(StrEnum):
    auto = "auto"
    ja = "ja"
    en = "en"


DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder that the stack keeps everything in (.fleet).", metavar="DIR"),
]
_GATEWAY, _WORKERS = "Gateway", "Workers"


@app.command()
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
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (127.0.0.1).", metavar="HOST", rich_help_panel=_GATEWAY)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port to listen on (8000).", min=1, max=65535, metavar="N", rich_help_panel=_GATEWAY),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Let a Prometheus on this machine scrape the services on this port, the workers on the next ones.",
            min=1,
            max=65000,
            metavar="N",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    auth: Annotated[
        AuthMode | None,
        typer.Option(
            help="Whether callers need an API key (none, where no other machine reaches the gateway).",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    dashboard_lang: Annotated[
        DashboardLang | None, typer.Option(help="Language of the dashboard (auto).", rich_help_panel=_GATEWAY)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="How many; 0 starts none.", min=0, metavar="N", rich_help_panel=_WORKERS),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            help="Runs that each executes at once (one per core).", min=1, metavar="N", rich_help_panel=_WORKERS
        ),
    ] = None,
    flow_resolver: Annotated[
        str | None,
        typer.Option(
            help="Where flows come from: a function, module:function or path/to/file.py:function.",
            metavar="FUNCTION",
            rich_help_panel=_WORKERS,
        ),
    ] = None,
    flows_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where flows come from: every *.py of a folder (examples).", metavar="DIR", rich_help_panel=_WORKERS
        ),
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
            report.ready()

        code = run_stack(plan, console=console, when_ready=when_ready)
    except _FAILURES as error:
        report.failed(str(error))
        if not in_background:
            raise
        logger.critical("%s", error, extra=exception_fields(error))
        code = 1
    raise typer.Exit(code)


@app.command()
def status(
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show the parts of a stack. Exit code 0: it runs; 3: it is stopped."""
    if show_status(_folder(data_dir), Console(), as_json=as_json) == "stopped":
        raise typer.Exit(_STOPPED_EXIT_CODE)


@app.command()
def logs(
    part: Annotated[str | None, typer.Argument(help="One part; all of them when left out.")] = None,
    data_dir: DataDir = None,
    follow_on: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many lines of each part.", min=0)] = 100,
    as_text: Annotated[
        bool | None,
        typer.Option("--text/--json", help="For reading, or as they are (text on a terminal)."),
    ] = None,
) -> None:
    """Show the logs of all parts, by the time at which it was said, or of one."""
    settings = LauncherSettings.load(data_dir=data_dir)
    folder, console = DataFolder(settings.data_dir), Console()
    if as_text is None:
        as_text = sys.stdout.isatty() or settings.log_format == "text"
    coming = follow(folder, part) if follow_on else iter(())
    for name, line in chain(in_order_of_time(logs_of(folder, part), lines), coming):
        if as_text:
            console.plain(for_people(name, line, coloured=is_coloured(sys.stdout)))
        else:
            console.plain(line if part else f"{name} | {line}")


@app.command()
def down(data_dir: DataDir = None) -> None:
    """Stop the stack of a data dir, in order, and wait until it is gone."""
    settings = LauncherSettings.load(data_dir=data_dir)
    stop_stack(DataFolder(settings.data_dir), settings, Console())


@app.command()
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
    run_worker(folder, settings, worker_id=worker_id, tags=tags, options=worker_options(settings, slots))


@app.command()
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
    if show:
        list_credentials(folder, settings, console)
    elif remove is not None:
        remove_credentials(folder, settings, console, worker_id=remove)
    elif worker_id is not None:
        make_credentials(folder, settings, console, worker_id=worker_id, tags=tags, out=out)


@app.command()
def nats_config(data_dir: DataDir = None) -> None:
    """Print the users of this stack as a NATS server's configuration, for a NATS that you run yourself.

    The parts use them when they are started with PYOCO_NATS_AUTH=nkey; their secrets stay in the data dir.
    """
    settings = LauncherSettings.load(data_dir=data_dir)
    folder = DataFolder(settings.data_dir)
    count = settings.workers if settings.workers is not None else 1
    worker_ids = [stack_worker_id(folder, number) for number in range(1, count + 1)]
    print_nats_config(folder, settings, worker_ids=worker_ids)


def main() -> None:
    """Run a command. A failure prints one sentence and exits with 1, Ctrl-C exits with 130."""
    # Files made by this process and by the parts are accessible to their owner only.
    os.umask(0o077)
    # Flows run as the same user, and this process has the secrets of all parts.
    keep_private()
    try:
        app()
    except _FAILURES as error:
        typer.echo(f"pyoco-server: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)
    except SystemExit as ending:
        if ending.code != _USAGE_EXIT_CODE:
            raise
        # Wrong arguments exit with 1 as every other failure does (seed spec, appendix D).
        if sys.argv[1:]:
            problem = Problem.INVALID_ARGUMENT
            typer.echo(f"pyoco-server: {problem.message} ({problem.err_id})", err=True)
        sys.exit(1)


def _log_to_stdout(settings: FleetSettings) -> None:
    configure_logging(service=SERVICE_LAUNCHER, component="launcher", settings=settings)


def _folder(data_dir: Path | None) -> DataFolder:
    return DataFolder(LauncherSettings.load(data_dir=data_dir).data_dir)

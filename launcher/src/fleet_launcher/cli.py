"""The `pyoco-server` command line: its commands, and how the failure of one is reported."""

import os
import sys
from collections.abc import Callable

import typer

from fleet_contracts.problems import Problem
from fleet_kit.privacy import keep_private

from .commands.down import down
from .commands.flows import check, try_flow
from .commands.launch import INTERRUPTED_EXIT_CODE
from .commands.log_lines import logs
from .commands.more_workers import nats_config, worker, worker_credentials
from .commands.reload import reload
from .commands.status import status
from .commands.up import up
from .errors import FAILURES

_USAGE_EXIT_CODE = 2

app = typer.Typer(
    help="Run Pyoco flows across machines: starts and watches the whole system on this one.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    up,
    status,
    logs,
    reload,
    down,
    worker,
    check,
    worker_credentials,
    nats_config,
)
for _command in _COMMANDS:
    app.command()(_command)
app.command("try")(try_flow)


def main() -> None:
    """Run a command. A failure prints one sentence and exits with 1, Ctrl-C exits with 130."""
    # Files made by this process and by the parts are accessible to their owner only.
    os.umask(0o077)
    # Flows run as the same user, and this process has the secrets of all parts.
    keep_private()
    try:
        app()
    except FAILURES as error:
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

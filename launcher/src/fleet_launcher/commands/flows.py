"""The commands `check` and `try`: look at flows, and run one, without a stack."""

import os
import re
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ..data_dir.folder import DataFolder
from ..errors import LaunchError
from ..settings import LauncherSettings
from ..stack.environment import environment_of
from ..stack.stack import worker_options

FlowResolver = Annotated[str | None, typer.Option(help="Where flows come from, as for `up`.", metavar="FUNCTION")]
FlowEnv = Annotated[Path | None, typer.Option(help="File of variables for flows alone, as for `up`.", metavar="FILE")]


def check(
    flows_dir: Annotated[
        Path | None, typer.Argument(help="Folder of flows; the one that `up` would use.", metavar="DIR")
    ] = None,
    flow_resolver: FlowResolver = None,
    flow_env: FlowEnv = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Load flows as a worker would, and show them with every problem. Exit code 1: there are problems."""
    _become(flow_env, *_source(flows_dir, flow_resolver), "check", *(["--json"] if as_json else []))


def try_flow(
    flow: Annotated[str, typer.Argument(help="Name of the flow.", metavar="FLOW")],
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="A param; JSON, or else text.", metavar="NAME=VALUE")
    ] = None,
    flows_dir: Annotated[Path | None, typer.Option(help="Where flows come from, as for `up`.", metavar="DIR")] = None,
    flow_resolver: FlowResolver = None,
    flow_env: FlowEnv = None,
) -> None:
    """Run a flow once in the foreground, without a stack; show its tasks and their output, print its result."""
    if wrong := next((one for one in param or [] if not re.match("[^=]+=", one)), None):
        raise LaunchError(f"-p {wrong} is not of the form NAME=VALUE")
    params = [word for one in param or [] for word in ("--param", one)]
    _become(flow_env, *_source(flows_dir, flow_resolver), "try", *params, "--", flow)


def _source(flows_dir: Path | None, flow_resolver: str | None) -> list[str]:
    """The options for where flows come from; what is given wins over the settings."""
    if flows_dir is not None and flow_resolver is None:
        return ["--flows-dir", str(flows_dir)]
    options = worker_options(LauncherSettings.load(flow_resolver=flow_resolver, flows_dir=flows_dir), None)
    if not options:
        raise LaunchError("no flows: name a folder, or set PYOCO_FLOWS_DIR")
    return list(options)


def _become(flow_env: Path | None, *arguments: str) -> NoReturn:
    """The worker's program takes the place of this process: flows are never loaded in the launcher."""
    sys.stdout.flush()
    env = environment_of("worker-check", os.environ)
    if flow_env is not None:
        env["PYOCO_FLOW_ENV_FILE"] = str(flow_env)
    # Installed once, for `up` as well.
    env.setdefault("PYOCO_FLOW_LIBRARIES_DIR", str(DataFolder(LauncherSettings.load().data_dir).libraries))
    command = [sys.executable, "-m", "fleet_worker.foreground", *arguments]
    os.execve(sys.executable, command, env)  # noqa: S606 - no shell is needed

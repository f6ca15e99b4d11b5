"""Checks flows, or runs one, in the foreground and without NATS: `python -m fleet_worker.foreground`."""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from fleet_contracts.catalogue import Catalogue
from fleet_contracts.events import EventKind
from fleet_contracts.status import RunStatus
from fleet_kit.settings import SettingsError

from .boundary.flow_version import FlowSources, FlowVersion
from .boundary.frames import Conclusion, Progress, Run, Setup
from .boundary.runner_account import AS_THE_AGENT
from .pool import runner_process
from .pool.runner_process import RunnerDied, RunnerProcess
from .settings import WorkerSettings
from .sources import libraries
from .sources.env_file import EnvFileUnusable, read_env_file
from .sources.libraries import Libraries
from .sources.requirements import LibrariesUnusable, Requirements
from .wheels.own_packages import own_packages

# Nothing is stored, so nothing has to be small.
_MOST_BYTES = 64 * 1024 * 1024
_INTERRUPTED_EXIT_CODE = 130


class Console:
    """States and output of the tasks go to stderr, so that stdout has the result only."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}
        self._unfinished: dict[tuple[str | None, str], str] = {}

    def show(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            if event["kind"] == EventKind.TASK:
                self._show_state(event["task"], event["status"], event["at"])
            elif event.get("text"):
                self._show_output(event.get("task"), event.get("stream", ""), event["text"])

    def finish(self) -> None:
        for (task, _), rest in self._unfinished.items():
            if rest:
                self._line(task, rest)
        self._unfinished.clear()

    def say(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def _show_state(self, task: str, status: str, at: float) -> None:
        seconds = f"  {at - before:.2f} s" if (before := self._started.pop(task, None)) is not None else ""
        if not seconds:
            self._started[task] = at
        self.finish()
        self.say(f"{task}  {status}{seconds}")

    def _show_output(self, task: str | None, stream: str, text: str) -> None:
        *lines, rest = (self._unfinished.get((task, stream), "") + text).split("\n")
        self._unfinished[task, stream] = rest
        for line in lines:
            self._line(task, line)

    def _line(self, task: str | None, line: str) -> None:
        self.say(f"{task or '-'} | {line}")


async def _sources_of(flows_dir: str | None) -> FlowSources:
    """What a worker with the present settings would load; its libraries are installed if they are missing."""
    settings = WorkerSettings.load()
    env = {} if settings.flow_env_file is None else read_env_file(settings.flow_env_file)
    sources = FlowSources(flows_dir, flows_dir, env=env)
    wanted = None if flows_dir is None else Requirements.of(Path(flows_dir), own_packages())
    if wanted is None:
        return sources
    # It may be in the data folder of a stack that has never been started, where nobody else may look.
    settings.flow_libraries_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = Libraries(settings.flow_libraries_dir, AS_THE_AGENT, timeout_seconds=settings.flow_install_timeout_sec)
    return replace(sources, library_paths=[str(await kept.get(wanted))])


def _check(flow_resolver: str | None, sources: FlowSources, *, as_json: bool) -> NoReturn:
    """The runner's side takes the place of this process: it alone imports flows."""
    options = ["--json"] if as_json else []
    if flow_resolver is not None:
        options += ["--flow-resolver", flow_resolver]
    if sources.flows_dir is not None:
        options += ["--flows-dir", sources.flows_dir]
    for path in sources.library_paths:
        options += ["--library-path", path]
    for name in sources.env:
        options += ["--secret-variable", name]
    command = [sys.executable, "-m", "fleet_worker.runner.describe", *options]
    sys.stderr.flush()
    os.execve(sys.executable, command, {**os.environ, **sources.env})  # noqa: S606 - our own command, no shell


async def _try(setup: Setup, sources: FlowSources, flow: str, params: dict[str, Any]) -> int:
    console, run_id = Console(), str(uuid.uuid4())
    start = replace(AS_THE_AGENT, env=sources.env)
    runner = RunnerProcess(setup, start, FlowVersion(sources=sources))
    interrupts = 0

    def interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            console.say("cancelling; Ctrl-C again to end it at once")
            runner.cancel(run_id)
        else:
            runner.kill()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, runner.kill)
    try:
        ready = await runner.start()
        if ready.error is not None:
            console.say(ready.error)
            return 1
        run = Run(run_id, flow, json.dumps(params), f"{setup.runs_dir}/{run_id}", _MOST_BYTES, _MOST_BYTES)
        done = await runner.run(run, lambda progress: _show(console, progress))
        console.show(done.events)
        console.finish()
        return _INTERRUPTED_EXIT_CODE if interrupts else _report(console, done, Catalogue(**ready.catalogue))
    except RunnerDied as error:
        console.finish()
        console.say("ended" if interrupts else str(error))
        return _INTERRUPTED_EXIT_CODE if interrupts else 1
    finally:
        await runner.stop()


def _show(console: Console, progress: Progress) -> None:
    console.show(progress.events)


def _report(console: Console, done: Conclusion, catalogue: Catalogue) -> int:
    """Print the result or the error; return the exit code."""
    if done.status is RunStatus.COMPLETED:
        sys.stdout.write(f"{json.dumps(done.result, indent=2, ensure_ascii=False)}\n")
        return 0
    if done.failure is not None and done.flow_failed:
        console.say(_of_the_flow(done.failure["exc_traceback"]))
    console.say(f"{done.status}: {done.error}")
    if not done.tasks:
        for problem in catalogue.broken:
            console.say(f"problem: {problem.shown}")
    return 1


def _of_the_flow(traceback: str) -> str:
    """The part of a traceback that begins where the runner calls the task."""
    lines = traceback.rstrip().split("\n")
    ours = f'  File "{Path(__file__).parent}{os.sep}'
    calls = [number for number, line in enumerate(lines) if line.startswith(ours)]
    below = lines[calls[-1] + 1 :] if calls else lines
    first = next((number for number, line in enumerate(below) if line.startswith("  File ")), None)
    return "\n".join(below[first:]) if calls and first is not None else "\n".join(lines)


def _param(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fleet_worker.foreground", description=__doc__)
    parser.add_argument("--flows-dir")
    parser.add_argument("--flow-resolver")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check")
    check.add_argument("--json", action="store_true")
    try_one = commands.add_parser("try")
    try_one.add_argument("flow")
    try_one.add_argument("-p", "--param", action="append", default=[], type=_param, metavar="NAME=VALUE")
    wanted = parser.parse_args()
    # What native code and programs print belongs to no task; the pool logs it.
    logging.basicConfig(format="%(message)s")
    logging.getLogger(runner_process.__name__).setLevel(logging.DEBUG)
    logging.getLogger(libraries.__name__).setLevel(logging.INFO)
    flows_dir = os.path.abspath(wanted.flows_dir) if wanted.flows_dir is not None else None
    try:
        sources = asyncio.run(_sources_of(flows_dir))
    except (SettingsError, EnvFileUnusable, LibrariesUnusable) as error:
        sys.exit(str(error))
    if wanted.command == "check":
        _check(wanted.flow_resolver, sources, as_json=wanted.json)
    with tempfile.TemporaryDirectory(prefix="pyoco-try-", ignore_cleanup_errors=True) as folder:
        setup = Setup(
            wanted.flow_resolver,
            flows_dir,
            str(Path(folder)),
            library_paths=list(sources.library_paths),
            secrets=sources.secrets,
        )
        code = asyncio.run(_try(setup, sources, wanted.flow, dict(wanted.param)))
    sys.exit(code)


if __name__ == "__main__":
    main()

"""The supervisor with stand-in parts: order, restarts, parts that hang or fall ill."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

import psutil
import pytest

from fleet_kit.settings import FleetSettings
from fleet_launcher.data_dir.state import PartPhase, PartState
from fleet_launcher.errors import LaunchError
from fleet_launcher.stack.parts import Part, StopStep
from fleet_launcher.supervise.supervisor import Backoff, Supervisor, stop_seconds
from fleet_testkit.waiting import eventually

from .standin_server import standin


class Watched:
    """A supervisor and every phase its parts went through."""

    def __init__(self, folder: Path, parts: list[Part]) -> None:
        self.history: list[tuple[str, PartPhase, str | None]] = []
        self.supervisor = Supervisor(
            parts,
            stack="a-test",
            log_of=lambda name: folder / f"{name}.log",
            log_settings=FleetSettings(),
            observer=self._note,
        )

    def _note(self, part: PartState, before: PartPhase) -> None:
        self.history.append((part.name, part.state, part.reason))

    def phases(self, name: str) -> list[PartPhase]:
        return [phase for phase, _ in groupby(phase for part, phase, _ in self.history if part == name)]


@asynccontextmanager
async def running(folder: Path, *parts: Part) -> AsyncIterator[Watched]:
    watched = Watched(folder, list(parts))
    try:
        await watched.supervisor.start(within_seconds=20)
        yield watched
    finally:
        await watched.supervisor.stop(asyncio.Event())


async def test_stages_start_in_order_and_stop_in_theirs(tmp_path: Path) -> None:
    parts = [
        standin(tmp_path, "worker", start_stage=1, stop_stage=0),
        standin(tmp_path, "nats", start_stage=0, stop_stage=2),
        standin(tmp_path, "service", start_stage=1, stop_stage=1),
    ]
    async with running(tmp_path, *parts) as watched:
        begun = [(name, phase) for name, phase, _ in watched.history]
        healthy = begun.index(("nats", PartPhase.HEALTHY))
        assert begun.index(("worker", PartPhase.STARTING)) > healthy
        assert begun.index(("service", PartPhase.STARTING)) > healthy
    assert (tmp_path / "stopped").read_text().split() == ["worker", "service", "nats"]
    assert [state.state for state in watched.supervisor.states] == [PartPhase.STOPPED] * 3


async def test_a_part_that_keeps_crashing_is_restarted_later_and_later(tmp_path: Path) -> None:
    async with running(tmp_path, standin(tmp_path, "fragile")) as watched:
        [state] = watched.supervisor.states
        for expected in ("restart 1 in 0.2 s", "restart 2 in 0.4 s", "restart 3 in 0.8 s"):
            await eventually(lambda: state.state is PartPhase.HEALTHY)
            assert state.pid is not None
            psutil.Process(state.pid).kill()
            await eventually(lambda: state.state is PartPhase.RESTARTING)
            assert state.reason == f"killed by SIGKILL; {expected}"
            assert state.pid is None
        await eventually(lambda: state.state is PartPhase.HEALTHY)
        assert state.restarts == 3


def test_the_backoff_has_a_limit_and_begins_anew_after_a_healthy_minute() -> None:
    backoff = Backoff()
    delays = [backoff.next(healthy_seconds=0) for _ in range(8)]
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert backoff.next(healthy_seconds=59) == 10.0
    assert backoff.next(healthy_seconds=60) == 0.2


async def test_a_part_that_hangs_is_killed_with_everything_it_started(tmp_path: Path) -> None:
    stuck = standin(tmp_path, "stuck", ["deaf", "parent"], stop=(StopStep(signal.SIGTERM, 0.3),))
    async with running(tmp_path, stuck) as watched:
        [state] = watched.supervisor.states
        assert state.pid is not None
        family = [psutil.Process(state.pid), psutil.Process(int((tmp_path / "stuck.child").read_text()))]
    assert not any(process.is_running() for process in family)


async def test_what_a_crashed_part_had_started_goes_with_it(tmp_path: Path) -> None:
    async with running(tmp_path, standin(tmp_path, "agent", ["parent"])) as watched:
        [state] = watched.supervisor.states
        child = psutil.Process(int((tmp_path / "agent.child").read_text()))
        assert state.pid is not None
        psutil.Process(state.pid).kill()
        await eventually(lambda: state.restarts == 1)
        assert not child.is_running()


async def test_a_part_that_runs_but_is_unhealthy_is_shown_and_not_restarted(tmp_path: Path) -> None:
    async with running(tmp_path, standin(tmp_path, "ill")) as watched:
        [state] = watched.supervisor.states
        pid = state.pid
        (tmp_path / "ill.ready").unlink()
        await eventually(lambda: state.state is PartPhase.UNHEALTHY)
        assert (state.pid, state.restarts, state.reason) == (pid, 0, "no ready file")
        (tmp_path / "ill.ready").write_text(str(pid))
        await eventually(lambda: state.state is PartPhase.HEALTHY)
    assert watched.phases("ill") == [
        PartPhase.STARTING,
        PartPhase.HEALTHY,
        PartPhase.UNHEALTHY,
        PartPhase.HEALTHY,
        PartPhase.STOPPED,
    ]


async def test_a_command_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    missing = standin(tmp_path, "missing", command=[str(tmp_path / "no-such-program")])
    with pytest.raises(LaunchError, match=r"missing does not start \(exit code 1.*No such file"):
        async with running(tmp_path, missing):
            pass


def test_the_time_of_an_orderly_stop_is_that_of_the_slowest_part_of_every_stage(tmp_path: Path) -> None:
    def part(stage: int, *seconds: float) -> Part:
        return standin(tmp_path, "a", stop_stage=stage, stop=[StopStep(signal.SIGTERM, s) for s in seconds])

    assert stop_seconds([part(0, 1), part(0, 2, 3), part(1, 4)]) == 9

"""How long a run stands still when the worker that executes it is killed and another one is there."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fleet_testkit.waiting import wait_until

from ..connection import submit_request
from ..figures import Figure
from ..load import hammer
from ..progress import say
from ..session import Session
from ..sides import Side

_PATIENCE_SECONDS = 90.0


@dataclass
class _Trial:
    """A run that leaves a mark whenever its execution begins."""

    side: Side
    marks: Path
    killed_at: float = 0.0
    took_seconds: float | None = None

    def executions(self) -> int:
        return len(self.marks.read_text().splitlines()) if self.marks.exists() else 0

    def look(self) -> bool:
        if self.took_seconds is None and self.executions() > 1:
            self.took_seconds = time.monotonic() - self.killed_at
        return self.took_seconds is not None


def measure_takeover(session: Session) -> list[Figure]:
    """Both at the same time: it is waiting that is measured, and the peer's wait is long."""
    tag = session.new_tag()
    trials = [_Trial(side, side.folder / "marks") for side in (session.ours, session.peer) if side.can_work]
    gate = session.ours.folder / "gate"
    with ExitStack() as workers:
        workers.callback(gate.touch)
        doomed = []
        for trial in trials:
            doomed.append(workers.enter_context(trial.side.worker(tag)))
            sent = submit_request("held", tag=tag, params={"marks": str(trial.marks), "gate": str(gate)})
            session.load.call(hammer, trial.side.port, sent, clients=1, seconds=_PATIENCE_SECONDS, count=1)
            wait_until(lambda trial=trial: trial.executions() == 1, within=30, what="the run executed")  # type: ignore[misc]
        for trial in trials:
            workers.enter_context(trial.side.worker(tag))
        for trial, worker in zip(trials, doomed, strict=True):
            worker.kill()
            trial.killed_at = time.monotonic()
        say("waiting until the runs of the killed workers are taken over")
        wait_until(lambda: _look_at_all(trials), within=_PATIENCE_SECONDS, what="the takeover")
        # Before the workers are asked to stop: they would wait for the end of the run.
        gate.touch()
    ours, peer = (
        next((t.took_seconds for t in trials if t.side is side), None) for side in (session.ours, session.peer)
    )
    assert ours is not None
    return [Figure("killed worker's run taken over after", "s", ours, peer)]


def _look_at_all(trials: Sequence[_Trial]) -> bool:
    # At every one, also when an earlier one still waits: each has its own moment.
    looks = [trial.look() for trial in trials]
    return all(looks)

"""How long a run stands still when the worker that executes it is killed and another one is there."""

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fleet_testkit.waiting import wait_until

from ..connection import submit_request
from ..figures import Figure
from ..load import hammer
from ..progress import say
from ..session import Session

_TIMEOUT_SECONDS = 90.0


@dataclass
class _Trial:
    """A run that leaves a mark whenever its execution begins."""

    marks: Path
    killed_at: float = 0.0
    took_seconds: float | None = None

    def has_begun(self) -> bool:
        return self._executions() > 0

    def look(self) -> bool:
        """Whether it has begun once more; the first look that sees it notes the time."""
        if self.took_seconds is None and self._executions() > 1:
            self.took_seconds = time.monotonic() - self.killed_at
        return self.took_seconds is not None

    def _executions(self) -> int:
        return len(self.marks.read_text().splitlines()) if self.marks.exists() else 0


def measure_takeover(session: Session) -> list[Figure]:
    """Both at the same time: it is waiting that is measured, and the peer's wait is long."""
    tag = session.new_tag()
    gate = session.ours.folder / "gate"
    trials = {side: _Trial(side.folder / "marks") for side in (session.ours, session.peer) if side.can_work}
    with ExitStack() as workers:
        try:
            doomed = {}
            for side, trial in trials.items():
                doomed[side] = workers.enter_context(side.worker(tag))
                sent = submit_request("held", tag=tag, params={"marks": str(trial.marks), "gate": str(gate)})
                session.load.call(hammer, side.port, sent, clients=1, seconds=_TIMEOUT_SECONDS, count=1)
                wait_until(trial.has_begun, within=_TIMEOUT_SECONDS, what="the run executed")
            for side in trials:
                workers.enter_context(side.worker(tag))
            for side, trial in trials.items():
                trial.killed_at = time.monotonic()
                doomed[side].kill()
            say("waiting until the runs of the killed workers are taken over")
            wait_until(lambda: _look_at_all(trials.values()), within=_TIMEOUT_SECONDS, what="the takeover")
        finally:
            # Before the workers are asked to stop: they would wait for the end of the run.
            gate.touch()
    took = {side: trial.took_seconds for side, trial in trials.items()}
    ours = took[session.ours]
    assert ours is not None
    return [Figure("killed worker's run taken over after", "s", ours, took.get(session.peer))]


def _look_at_all(trials: Iterable[_Trial]) -> bool:
    # At every one, also when an earlier one still waits: each has its own moment.
    looks = [trial.look() for trial in trials]
    return all(looks)

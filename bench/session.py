"""One run of the bench: both sides, the load, and how much effort is made."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from .figures import Figure
from .load import LoadProcess
from .sides import Ours, Peer, Side


@dataclass(frozen=True)
class Effort:
    rounds: int
    submit_seconds: float
    batch_seconds: float
    end_to_end_runs: int
    five_tags_laps: int
    drain_rounds: int
    drain_runs: int
    writes_runs: int
    list_seconds: float
    watch_changes: int
    watchers_ours: int
    watchers_peer: int
    hostile_seconds: float
    map_runs: int


QUICK = Effort(
    rounds=2,
    submit_seconds=0.8,
    batch_seconds=1.0,
    end_to_end_runs=20,
    five_tags_laps=1,
    drain_rounds=1,
    drain_runs=400,
    writes_runs=100,
    list_seconds=0.5,
    watch_changes=10,
    watchers_ours=2000,
    watchers_peer=500,
    hostile_seconds=5.0,
    map_runs=300,
)
FULL = Effort(
    rounds=5,
    submit_seconds=4.0,
    batch_seconds=4.0,
    end_to_end_runs=100,
    five_tags_laps=4,
    drain_rounds=3,
    drain_runs=2000,
    writes_runs=500,
    list_seconds=2.0,
    watch_changes=30,
    watchers_ours=2000,
    watchers_peer=1000,
    hostile_seconds=20.0,
    map_runs=1000,
)


@dataclass
class Session:
    ours: Ours
    peer: Peer
    load: LoadProcess
    effort: Effort
    _tags: "count[int]" = field(default_factory=lambda: count(1))

    def new_tag(self) -> str:
        """Nobody has used it: its queue is empty, and only workers started for it take from it."""
        return f"bench-{next(self._tags)}"

    def compare(
        self,
        name: str,
        unit: str,
        measure: Callable[[Side], float],
        *,
        needs_worker: bool = False,
        rounds: int | None = None,
    ) -> Figure:
        """The median of rounds that take turns: whatever else the machine does, it does to both."""
        sides = [side for side in (self.ours, self.peer) if side.can_work or not needs_worker]
        seen: dict[Side, list[float]] = {side: [] for side in sides}
        for _ in range(rounds or self.effort.rounds):
            for side in sides:
                seen[side].append(measure(side))
        peer = statistics.median(seen[self.peer]) if self.peer in seen else None
        return Figure(name, unit, statistics.median(seen[self.ours]), peer)

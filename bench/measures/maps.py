"""Many tiny runs from a script until all results are in: by `Fleet.map`, and by single requests and polling."""

import resource
import time
from collections.abc import Callable

from ..connection import HOST
from ..errors import BenchFailed
from ..figures import Figure
from ..load import LoadProcess
from ..session import Session
from ..sides import Side

# The client is imported where it is used: an ablation loads this package also in older checkouts, which have none.
_TIMEOUT_SECONDS = 300.0
# As scripts do it that have no stream to wait for.
_POLL_SECONDS = 0.1
_RESULT = 2
# What the client may need more for ten times as many runs.
_GROWTH_LIMIT_MIB = 16.0


def measure_map(session: Session) -> list[Figure]:
    runs = session.effort.map_runs

    def by_map(side: Side) -> float:
        return _measured(session, side, map_seconds if side is session.ours else one_by_one_seconds)

    def on_ours(side: Side) -> float:
        # The column of the peer is ours, too: the same fleet, used in the other way.
        return _measured(session, session.ours, map_seconds if side is session.ours else one_by_one_seconds)

    title = f"map of {runs:,} tiny runs, until all results are in"
    rounds = session.effort.drain_rounds
    return [
        session.compare(f"{title} (peer: one by one, polling)", "s", by_map, needs_worker=True, rounds=rounds),
        session.compare(f"{title} (beside it ours one by one, polling)", "s", on_ours, rounds=rounds),
        *_memory(session),
    ]


def map_seconds(port: int, tag: str, runs: int) -> float:
    from pyoco_fleet import Fleet

    begun = time.perf_counter()
    with Fleet(f"http://{HOST}:{port}") as fleet:
        group = fleet.map("tiny", ({} for _ in range(runs)), tag=tag)
        results = [run.result() for run in group.as_completed(_TIMEOUT_SECONDS)]
    took = time.perf_counter() - begun
    if results != [_RESULT] * runs:
        raise BenchFailed(f"{len(results)} of {runs} runs gave results, some of them wrong")
    return took


def one_by_one_seconds(port: int, tag: str, runs: int) -> float:
    from pyoco_fleet import PyocoHttpClient

    begun = time.perf_counter()
    client = PyocoHttpClient(f"http://{HOST}:{port}")
    run_ids = [client.submit_run("tiny", tag=tag)["run_id"] for _ in range(runs)]
    for run_id in run_ids:
        while client.get_run(run_id)["status"] != "COMPLETED":
            if time.perf_counter() - begun > _TIMEOUT_SECONDS:
                raise BenchFailed(f"the run {run_id} has not completed")
            time.sleep(_POLL_SECONDS)
        client.get_run_with_records(run_id)["task_records"]["two"]["output"]
    client.close()
    return time.perf_counter() - begun


def map_mib(port: int, tag: str, runs: int) -> float:
    """The most memory that this process has had, with a script that keeps no results."""
    from pyoco_fleet import Fleet

    with Fleet(f"http://{HOST}:{port}") as fleet:
        group = fleet.map("tiny", ({} for _ in range(runs)), tag=tag)
        total = sum(run.result() for run in group.as_completed(_TIMEOUT_SECONDS))
    if total != _RESULT * runs:
        raise BenchFailed("some runs gave wrong results")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _memory(session: Session) -> list[Figure]:
    few, many = session.effort.map_runs, 10 * session.effort.map_runs
    tag = session.new_tag()
    used = {}
    with session.ours.worker(tag):
        for runs in (few, many):
            with LoadProcess() as script:
                used[runs] = script.call(map_mib, session.ours.port, tag, runs)
    return [
        Figure(f"memory of a script, map of {few:,}", "MiB", used[few], None),
        Figure(
            f"the same, more for {many:,}", "MiB", max(used[many] - used[few], 0.1), None, limit=_GROWTH_LIMIT_MIB
        ),
    ]


def _measured(session: Session, side: Side, seconds_of: Callable[[int, str, int], float]) -> float:
    tag = session.new_tag()
    with side.worker(tag):
        return session.load.call(seconds_of, side.port, tag, session.effort.map_runs)

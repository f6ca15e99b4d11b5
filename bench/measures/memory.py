"""How much memory every process holds, after a little work and whatever was measured before."""

from contextlib import ExitStack

import psutil

from ..connection import submit_request
from ..figures import Figure
from ..load import end_to_end
from ..session import Session
from ..sides import Side

_RUNS = 50
# What does the same work on the other side.
_COUNTERPARTS = {"nats": "nats", "runs-api": "http", "worker": "worker"}


def measure_memory(session: Session) -> list[Figure]:
    tag = session.new_tag()
    with ExitStack() as workers:
        ours = _memory(session, session.ours, tag, workers)
        peer = _memory(session, session.peer, tag, workers)
    figures = []
    for name, mebibytes in ours.items():
        counterpart = _COUNTERPARTS.get(name, "")
        title = f"memory, {name}" + (f" (peer: {counterpart})" if counterpart not in ("", name) else "")
        figures.append(Figure(title, "MiB", mebibytes, peer.get(counterpart)))
    total = sum(peer.values()) if session.peer.can_work else None
    return [*figures, Figure("memory, all together", "MiB", sum(ours.values()), total)]


def _memory(session: Session, side: Side, tag: str, workers: ExitStack) -> dict[str, float]:
    pids = side.pids()
    if side.can_work:
        worker = workers.enter_context(side.worker(tag))
        session.load.call(end_to_end, side.port, [submit_request("tiny", tag=tag)], runs=_RUNS)
        pids["worker"] = worker.pid
    return {name: _resident_mebibytes(pid, with_children=name != "launcher") for name, pid in pids.items()}


def _resident_mebibytes(pid: int, *, with_children: bool) -> float:
    process = psutil.Process(pid)
    family = [process, *(process.children(recursive=True) if with_children else [])]
    return float(sum(member.memory_info().rss for member in family)) / 2**20

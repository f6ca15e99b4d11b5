"""How long one run takes from its submit until a client sees it COMPLETED, with nothing else to do."""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack

from ..connection import submit_request
from ..figures import Figure
from ..load import end_to_end
from ..session import Session
from ..sides import Side

_WARM_UP_RUNS = 3


def measure_end_to_end(session: Session) -> list[Figure]:
    return [_compare(session, "end to end, p50", tags=[session.new_tag()], runs=session.effort.end_to_end_runs)]


def measure_tags(session: Session) -> list[Figure]:
    """A worker of five tags beside a worker of one; the runs take turns among the tags."""
    one = [session.new_tag()]
    five = [session.new_tag() for _ in range(5)]
    # Whole laps: a tag of which there were more runs would weigh more.
    runs = len(five) * session.effort.five_tags_laps
    return [
        _compare(session, "end to end, worker with one tag, p50", tags=one, runs=runs),
        _compare(session, "end to end, worker with five tags, p50", tags=five, runs=runs),
    ]


def _compare(session: Session, name: str, *, tags: Sequence[str], runs: int) -> Figure:
    submits = [submit_request("tiny", tag=tag) for tag in tags]

    def p50_ms(side: Side) -> float:
        return 1000 * statistics.median(session.load.call(end_to_end, side.port, submits, runs=runs))

    with ExitStack() as workers:
        for side in (session.ours, session.peer):
            if side.can_work:
                workers.enter_context(side.worker(*tags))
                session.load.call(end_to_end, side.port, submits, runs=_WARM_UP_RUNS)
        return session.compare(name, "ms", p50_ms, needs_worker=True)

"""How many runs are accepted per second, one by one and by batch. No worker takes them."""

from ..connection import request, submit_request
from ..figures import Figure
from ..load import hammer
from ..session import Session
from ..sides import Side

_CLIENTS = (1, 16, 64)
_RUNS_PER_BATCH = 1000
_BATCH_CLIENTS = 4


def measure_submit(session: Session) -> list[Figure]:
    sent = submit_request("tiny", tag=session.new_tag())
    figures = []
    for clients in _CLIENTS:

        def rate(side: Side, clients: int = clients) -> float:
            seconds = session.effort.submit_seconds
            return session.load.call(hammer, side.port, sent, clients=clients, seconds=seconds).per_second

        plural = "s" if clients > 1 else ""
        figures.append(session.compare(f"submit, {clients} client{plural}", "per s", rate))
    return figures


def measure_batch(session: Session) -> list[Figure]:
    """The peer takes no batches: it is compared with its best way to take many runs."""
    tag = session.new_tag()
    single = submit_request("tiny", tag=tag)
    run = {"flow_name": "tiny", "params": {}, "tag": tag}
    batch = request("POST", "/runs/batch", {"runs": [run] * _RUNS_PER_BATCH})

    def rate(side: Side) -> float:
        seconds = session.effort.batch_seconds
        if side is session.ours:
            outcome = session.load.call(hammer, side.port, batch, clients=_BATCH_CLIENTS, seconds=seconds)
            return _RUNS_PER_BATCH * outcome.per_second
        return session.load.call(hammer, side.port, single, clients=64, seconds=seconds).per_second

    return [session.compare(f"submit by batch of {_RUNS_PER_BATCH} (peer: 64 clients)", "per s", rate)]

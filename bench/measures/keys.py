"""What a caller with an API key pays: accepted runs per second with authentication on, beside without."""

import statistics

from fleet_testkit.api_keys import issue_key

from ..connection import submit_request
from ..figures import Figure
from ..load import hammer
from ..session import Session
from ..sides import Ours

_CLIENTS = 16
# While it checks a key it does nothing else for a tenth of a second: more clients make its NATS requests time out.
_PEER_CLIENTS = 4
# Also in a quick run: a share needs steadier figures than a ratio of ten.
_FEWEST_ROUNDS = 3


def measure_keys(session: Session) -> list[Figure]:
    """Two fresh stacks of ours that differ in nothing but authentication; of the peer two services on one NATS."""
    tag = session.new_tag()
    folder = session.ours.folder.parent
    with (
        Ours(folder / "open") as ours_open,
        Ours(folder / "keys", "--auth", "api_key") as ours_keys,
        session.peer.wanting_keys() as (peer_port, peer_key),
    ):
        without = submit_request("tiny", tag=tag)
        ours_key = issue_key(ours_keys.stack, "bench")
        sides = {
            "ours": (ours_open.port, without, _CLIENTS),
            "ours with a key": (ours_keys.port, submit_request("tiny", tag=tag, headers=ours_key), _CLIENTS),
            "peer": (session.peer.port, without, _PEER_CLIENTS),
            "peer with a key": (peer_port, submit_request("tiny", tag=tag, headers=peer_key), _PEER_CLIENTS),
        }
        seen: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(max(session.effort.rounds, _FEWEST_ROUNDS)):
            for name, (port, sent, clients) in sides.items():
                seconds = session.effort.submit_seconds
                outcome = session.load.call(hammer, port, sent, clients=clients, seconds=seconds)
                seen[name].append(outcome.per_second)
    ours, peer = (statistics.median(seen[f"{side} with a key"]) for side in ("ours", "peer"))
    return [
        Figure(f"submit with an API key, {_CLIENTS} clients (peer: {_PEER_CLIENTS})", "per s", ours, peer),
        Figure("the same beside without a key", "%", _share(seen, "ours"), _share(seen, "peer")),
    ]


def _share(seen: dict[str, list[float]], side: str) -> float:
    """Round by round: whatever else the machine did then, it did to both."""
    pairs = zip(seen[f"{side} with a key"], seen[side], strict=True)
    return statistics.median(100 * with_key / without for with_key, without in pairs)

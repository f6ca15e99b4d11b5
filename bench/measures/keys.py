"""What a caller with an API key pays: accepted runs per second with authentication on, beside without."""

import statistics

from fleet_testkit.api_keys import issue_key

from ..connection import submit_request
from ..figures import Figure
from ..load import hammer
from ..session import Session
from ..sides import Ours

_CLIENTS = 16
# Also in a quick run: a share needs steadier figures than a ratio of ten.
_FEWEST_ROUNDS = 3


def measure_keys(session: Session) -> list[Figure]:
    """Two fresh stacks of ours that differ in nothing but the door; of the peer two services on one NATS."""
    tag = session.new_tag()
    folder = session.ours.folder.parent
    with (
        Ours(folder / "open") as ours_open,
        Ours(folder / "keys", "--auth", "api_key") as ours_keys,
        session.peer.wanting_keys() as (peer_port, peer_key),
    ):
        without = submit_request("tiny", tag=tag)
        doors = {
            "ours": (ours_open.port, without),
            "ours with a key": (ours_keys.port, submit_request("tiny", tag=tag, headers=_key(ours_keys))),
            "peer": (session.peer.port, without),
            "peer with a key": (peer_port, submit_request("tiny", tag=tag, headers=peer_key)),
        }
        seen: dict[str, list[float]] = {name: [] for name in doors}
        for _ in range(max(session.effort.rounds, _FEWEST_ROUNDS)):
            for name, (port, sent) in doors.items():
                seconds = session.effort.submit_seconds
                outcome = session.load.call(hammer, port, sent, clients=_CLIENTS, seconds=seconds)
                seen[name].append(outcome.per_second)
    ours, peer = (statistics.median(seen[f"{side} with a key"]) for side in ("ours", "peer"))
    return [
        Figure(f"submit with an API key, {_CLIENTS} clients", "per s", ours, peer),
        Figure("the same beside without a key", "%", _share(seen, "ours"), _share(seen, "peer")),
    ]


def _share(seen: dict[str, list[float]], side: str) -> float:
    """Round by round: whatever else the machine did then, it did to both."""
    pairs = zip(seen[f"{side} with a key"], seen[side], strict=True)
    return statistics.median(100 * with_key / without for with_key, without in pairs)


def _key(side: Ours) -> dict[str, str]:
    return issue_key(side.stack, "bench")

"""How soon a watcher hears of a change, alone and among many who watch other runs."""

from itertools import count

from fleet_testkit.nats_users import operator_file

from ..figures import Figure
from ..session import Session
from ..sides import Side
from ..watchers import watch_delay_p50_ms

_WATCHED_BY_CROWD = 100


def measure_watch(session: Session) -> list[Figure]:
    effort = session.effort
    ours, peer = effort.watchers_ours, effort.watchers_peer
    crowds = {session.ours: ours, session.peer: peer}
    seeds = count(1)

    def delay(side: Side, *, watchers: int, changes: int) -> float:
        # No worker serves the tag: the runs wait, and only the bench changes them.
        tag = session.new_tag()
        run_id = _submit(side, tag)
        others = [_submit(side, tag) for _ in range(_WATCHED_BY_CROWD if watchers else 0)]
        crowd = [others[number % _WATCHED_BY_CROWD] for number in range(watchers)]
        operator = operator_file(side.nats_url)
        return session.load.call(
            watch_delay_p50_ms,
            *(side.port, side.nats_url, run_id),
            nkey_file=None if operator is None else str(operator),
            crowd=crowd,
            changes=changes,
            seed=next(seeds),
        )

    return [
        session.compare(
            "watch delay, p50",
            "ms",
            lambda side: delay(side, watchers=0, changes=effort.watch_changes // effort.rounds),
        ),
        session.compare(
            f"watch delay among {ours:,} watchers (peer: {peer:,}), p50",
            "ms",
            lambda side: delay(side, watchers=crowds[side], changes=effort.watch_changes),
            # To gather the crowd takes longer than to measure.
            rounds=1,
        ),
    ]


def _submit(side: Side, tag: str) -> str:
    run_id: str = (
        side.client.post("/runs", json={"flow_name": "tiny", "tag": tag}).raise_for_status().json()["run_id"]
    )
    return run_id

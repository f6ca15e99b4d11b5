"""What a list and the metrics cost with few and with many runs that have ended."""

import asyncio
import json

from nats.aio.client import Client
from sqlalchemy import create_engine, text

from fleet_contracts.names import WireNames, kv_stream, kv_subject
from fleet_testkit.filling import fill_ledger

from ..connection import request
from ..figures import Figure
from ..load import hammer
from ..progress import say
from ..session import Session
from ..sides import Side

# With more than this the peer takes minutes for one list.
_PEER_AT_MOST = 10_000
_SIZES = (1_000, 10_000, 100_000)
_PATHS = {"list 50": "/runs?limit=50", "metrics": "/metrics"}
_BUCKET = WireNames().runs_kv_bucket
_IN_FLIGHT = 500


def measure_lists(session: Session) -> list[Figure]:
    figures = []
    try:
        for size in _SIZES:
            say(f"filling in {size:,} ended runs")
            _fill_ours(session, size)
            if size <= _PEER_AT_MOST:
                session.peer.wire.use(lambda client, size=size: _fill_peer(client, size))  # type: ignore[misc]
            figures += [_measure(session, name, path, size) for name, path in _PATHS.items()]
    finally:
        # The other measurements begin with nothing.
        _fill_ours(session, 0)
        session.peer.wire.use(_empty_peer)
    return figures


def _measure(session: Session, name: str, path: str, size: int) -> Figure:
    sent = request("GET", path)

    def p50_ms(side: Side) -> float:
        seconds = session.effort.list_seconds
        return session.load.call(hammer, side.port, sent, clients=1, seconds=seconds).p50_ms

    title = f"{name}, {size:,} runs"
    if size > _PEER_AT_MOST:
        return Figure(title, "ms", p50_ms(session.ours), None)
    # One answer of the peer takes seconds when it has many runs, and varies little.
    return session.compare(title, "ms", p50_ms, rounds=1 if size == _PEER_AT_MOST else None)


def _fill_ours(session: Session, size: int) -> None:
    engine = create_engine(f"sqlite:///{session.ours.stack.data_dir}/runs.db")
    with engine.begin() as connection:
        for table in ("run_documents", "run_counts", "runs"):
            connection.execute(text(f"DELETE FROM {table}"))
        if size:
            fill_ledger(connection, size)
    engine.dispose()


async def _fill_peer(client: Client, size: int) -> None:
    """Snapshots as the peer's worker leaves them."""
    js = client.jetstream()
    for first in range(0, size, _IN_FLIGHT):
        await asyncio.gather(
            *(
                js.publish(kv_subject(_BUCKET, f"filled-{number}"), _ended_run(f"filled-{number}", number))
                for number in range(first, min(first + _IN_FLIGHT, size))
            )
        )


def _ended_run(run_id: str, moment: float) -> bytes:
    snapshot = {
        **{"run_id": run_id, "flow_name": "tiny", "tag": "default", "tags": ["default"], "params": {}},
        **{"tenant_id": None, "api_key_id": None, "status": "COMPLETED", "error": None},
        **{"tasks": {"one": "SUCCEEDED", "two": "SUCCEEDED"}, "task_records": {}},
        **{"start_time": moment, "end_time": moment, "heartbeat_at": moment, "updated_at": moment},
    }
    return json.dumps(snapshot).encode()


async def _empty_peer(client: Client) -> None:
    await client.jetstream().purge_stream(kv_stream(_BUCKET))

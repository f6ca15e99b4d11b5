"""What a list and the metrics cost with few and with many runs that have ended."""

import asyncio
import json
import time
from functools import partial
from statistics import median

import httpx
from nats.aio.client import Client
from sqlalchemy import create_engine, inspect, text

from fleet_contracts.names import WireNames, kv_stream, kv_subject
from fleet_testkit.filling import fill_ledger

from ..connection import request
from ..figures import Figure
from ..load import hammer
from ..progress import say
from ..session import Session
from ..sides import Ours, Side

# With more than this the peer takes minutes for one list.
_PEER_AT_MOST = 10_000
_SIZES = (1_000, 10_000, 100_000)
_PATHS = {"list 50": "/runs?limit=50", "metrics": "/metrics"}
_BUCKET = WireNames().runs_kv_bucket
_IN_FLIGHT = 500
_SCRAPES = 7
_SCRAPE_APART_SECONDS = 2.2


def measure_lists(session: Session) -> list[Figure]:
    figures = []
    with Ledger(session.ours) as ledger:
        for size in _SIZES:
            say(f"filling in {size:,} ended runs")
            ledger.refill(size)
            if size <= _PEER_AT_MOST:
                session.peer.wire.use(partial(_fill_peer, size=size))
            figures += [_measure(session, name, path, size) for name, path in _PATHS.items()]
            figures.append(
                Figure(f"scrape of runs-api, {size:,} runs", "ms", scrape_ms(session.ours.metrics_port), None)
            )
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


def scrape_ms(port: int) -> float:
    """A scrape of runs-api past the gateway: the median of some, so far apart that each asks ledger and streams."""
    took = []
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        client.get("/runs-api/metrics")
        for _ in range(_SCRAPES):
            time.sleep(_SCRAPE_APART_SECONDS)
            begun = time.perf_counter()
            client.get("/runs-api/metrics").raise_for_status()
            took.append((time.perf_counter() - begun) * 1000)
    return median(took)


class Ledger:
    """Our ledger, filled from outside; what was empty before is empty again at the end."""

    def __init__(self, ours: Ours) -> None:
        self._engine = create_engine(f"sqlite:///{ours.stack.data_dir}/runs.db")

    def __enter__(self) -> "Ledger":
        with self._engine.connect() as connection:
            tables = inspect(connection).get_table_names()
            self._empty = [table for table in tables if not connection.scalar(text(f"SELECT 1 FROM {table} LIMIT 1"))]
        return self

    def __exit__(self, *_: object) -> None:
        self.refill(0)
        self._engine.dispose()

    def refill(self, size: int) -> None:
        with self._engine.begin() as connection:
            for table in self._empty:
                connection.execute(text(f"DELETE FROM {table}"))
            if size:
                fill_ledger(connection, size)
                # Ended just now: what ended long ago would be tidied away while it is measured.
                connection.execute(text("UPDATE runs SET finished_at = :now"), {"now": time.time()})


async def _fill_peer(client: Client, *, size: int) -> None:
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

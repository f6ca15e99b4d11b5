"""What the service holds in memory does not grow with the number of runs that it has seen."""

import asyncio
import gc
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_runs_api.ledger import accepted
from fleet_runs_api.ledger.sql.database import Database
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, runs_running, runs_settings

RUNS = 250


async def test_no_container_of_the_service_grows_with_the_runs_that_have_ended(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cache is full after the first round: from then on it must not grow.
    monkeypatch.setattr(accepted, "_MOST_KEPT", RUNS // 5)
    settings = runs_settings(nats_server, tmp_path, runs_kv_retention_sec=0.1, idempotency_key_ttl_sec=60)
    async with runs_running(settings) as service:
        await play(service, "warm up")
        before = containers_of(service.app)
        await play(service, "once more")

        def grown() -> list[str]:
            return [
                f"{type(container).__name__} of {len(container)} with {str(container)[:200]}"
                for identity, (container, size) in containers_of(service.app).items()
                if container is not before and size - before.get(identity, (None, 0))[1] >= 0.8 * RUNS
            ]

        # The last round of a part may still be under way: what it holds goes with it.
        await eventually(grown, until=lambda found: not found, within=20, what="no container that has grown")


def test_the_page_caches_of_all_connections_are_bounded(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/runs.db")
    kib = 0
    for engine in (database.writer, database.reader):
        with engine.connect() as connection:
            cache: int = connection.execute(text("PRAGMA cache_size")).scalar_one()
        assert cache < 0  # in KiB, whatever the size of a page
        kib -= cache * engine.pool.size()  # type: ignore[attr-defined]
    database.dispose()
    assert kib <= 32 * 1024


async def play(service: RunsUnderTest, key: str) -> None:
    """Runs are submitted, ended, listed, read, some of them watched, and let go of by KV."""
    answer = await service.client.post(
        "/runs/batch", json={"runs": [{"flow_name": "hello"}] * RUNS}, headers={"Idempotency-Key": key}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    run_ids = [run["run_id"] for run in answer.json()["runs"]]
    for start in range(0, RUNS, 50):
        await asyncio.gather(*(end(service, run_id) for run_id in run_ids[start : start + 50]))
    listed = await service.client.get("/runs", params={"limit": 200})
    assert listed.status_code == 200
    for run_id in run_ids:
        assert (await service.client.get(f"/runs/{run_id}")).status_code == 200
    for run_id in run_ids[::20]:
        assert (await service.client.get(f"/runs/{run_id}/watch", timeout=30)).status_code == 200
    for path in ("watch?results=1", "results"):
        answer = await service.client.post(f"/runs/{path}", json={"run_ids": run_ids}, timeout=30)
        assert answer.text.count('"status":"COMPLETED"') == RUNS, answer.text[:500]
    unreleased = "SELECT run_id FROM runs WHERE kv_released = 0 LIMIT 1"
    await eventually(lambda: _is_empty(service, unreleased), within=60, what="KV has let go of all runs")


async def end(service: RunsUnderTest, run_id: str) -> None:
    def finish(snapshot: RunSnapshot) -> RunSnapshot:
        claimed = snapshot.claim(worker_id="w1", worker_instance_id="i1", ack_subject=None, now=time.time())
        return claimed.finish(RunStatus.COMPLETED, now=time.time())

    await eventually(lambda: service.found(run_id), within=60, what="the run sent")
    await service.change(run_id, finish)


async def _is_empty(service: RunsUnderTest, query: str) -> bool:
    return not service.rows(query)


def containers_of(root: Any) -> dict[int, tuple[Any, int]]:
    """Every container that can be reached from the application, by its identity, with its size."""
    gc.collect()
    seen, waiting = {id(root)}, [root]
    found: dict[int, tuple[Any, int]] = {}
    while waiting:
        for inner in gc.get_referents(waiting.pop()):
            if id(inner) in seen:
                continue
            seen.add(id(inner))
            waiting.append(inner)
            if isinstance(inner, dict | list | set | deque):
                found[id(inner)] = (inner, len(inner))
    return found

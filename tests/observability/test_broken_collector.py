"""Whatever the collector does, requests are answered, runs end, and processes stop when they are told to."""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fleet_testkit.apps import ANONYMOUS, ServiceProcess
from fleet_testkit.broken_collectors import Broken, broken_collector
from fleet_testkit.log_lines import log_lines
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually
from fleet_testkit.worker_process import WorkerProcess

SUBMITS = 100


@pytest.fixture
def other_nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "other-nats-server")
    server.start()
    yield server
    server.kill()


def runs_api(folder: Path, nats_server: NatsServer, **env: str) -> ServiceProcess:
    folder.mkdir()
    database = f"sqlite:///{folder}/runs.db"
    return ServiceProcess(
        "fleet_runs_api", folder, PYOCO_NATS_URL=nats_server.url, PYOCO_RUNS_DATABASE_URL=database, **env
    )


async def submit(client: httpx.AsyncClient) -> tuple[str, float]:
    """The run, and how long the answer took."""
    begun = time.perf_counter()
    answer = await client.post("/runs", json={"flow_name": "hello"}, headers=ANONYMOUS)
    took = time.perf_counter() - begun
    assert answer.status_code == 200, answer.text
    return answer.json()["run_id"], took


@pytest.mark.parametrize("how", Broken)
async def test_submits_are_answered_as_if_there_were_no_collector(
    how: Broken,
    nats_server: NatsServer,
    other_nats_server: NatsServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with broken_collector(how) as env:
        traced = runs_api(tmp_path / "traced", nats_server, **env)
        plain = runs_api(tmp_path / "plain", other_nats_server)
        async with plain.serving() as plain_client:
            async with traced.serving() as traced_client:
                times: dict[str, list[float]] = {"plain": [], "traced": []}
                # One after the other, so that both have the same neighbours on this machine.
                for _ in range(SUBMITS):
                    times["plain"].append((await submit(plain_client))[1])
                    times["traced"].append((await submit(traced_client))[1])
                stopping_since = time.monotonic()
            stop_seconds = time.monotonic() - stopping_since
    p50 = {name: statistics.median(seconds) for name, seconds in times.items()}
    with capsys.disabled():
        print(f"\n[figures] the collector {how}: p50 of a submit {p50['traced'] * 1000:.1f} ms, ", end="")
        print(f"without tracing {p50['plain'] * 1000:.1f} ms; stopped after {stop_seconds:.1f} s")
    # It is no other kind of slow; a request that waited for the collector would take seconds.
    assert p50["traced"] < 5 * p50["plain"] + 0.05
    assert max(times["traced"]) < 5
    complaints = [line for line in log_lines(traced.log.read_text()) if line["logger"] == "fleet_kit.telemetry"]
    assert 1 <= len(complaints) <= 3, complaints


@pytest.mark.parametrize("how", Broken)
async def test_runs_end_and_their_worker_stops(
    how: Broken, nats_server: NatsServer, tmp_path: Path, flows_dir: Path
) -> None:
    with broken_collector(how) as env:
        service = runs_api(tmp_path / "traced", nats_server, **env)
        worker = WorkerProcess(
            nats_server.url, tmp_path, "w1", tag="default", flows_dir=flows_dir.parents[1] / "examples", **env
        )
        async with service.serving() as client:
            with worker:
                run_id, _ = await submit(client)

                async def is_complete() -> bool:
                    answer = await client.get(f"/runs/{run_id}", headers=ANONYMOUS)
                    return bool(answer.json()["status"] == "COMPLETED")

                await eventually(is_complete, within=60, what="the run being complete")
                stopping_since = time.monotonic()
                worker.stop()
                assert time.monotonic() - stopping_since < 15
        lines = [line for line in log_lines(worker.log) if line["logger"] == "fleet_kit.telemetry"]
        assert len(lines) <= 3, lines

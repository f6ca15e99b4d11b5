"""Whatever the collector does, requests are answered, runs end, and processes stop on SIGTERM."""

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
from fleet_testkit.otlp import Receiver
from fleet_testkit.waiting import eventually
from fleet_testkit.worker_process import WorkerProcess

SUBMITS = 100
# Of three spans a submit: it is full long before the last one, as in an outage that lasts.
SMALL_QUEUE = {"OTEL_BSP_MAX_QUEUE_SIZE": "32", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "16"}


@pytest.fixture
def nats_servers(tmp_path: Path) -> Iterator[list[NatsServer]]:
    """One for each service: they would take each other's snapshots."""
    servers = [NatsServer(tmp_path / f"nats-{number}") for number in range(3)]
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.kill()


def runs_api(folder: Path, nats_server: NatsServer, **env: str) -> ServiceProcess:
    folder.mkdir()
    database = f"sqlite:///{folder}/runs.db"
    return ServiceProcess(
        "fleet_runs_api", folder, PYOCO_NATS_URL=nats_server.url, PYOCO_RUNS_DATABASE_URL=database, **env
    )


def warnings_of(log: str) -> list[str]:
    return [line["message"] for line in log_lines(log, logger="fleet_kit.telemetry.setup")]


def how_spans_are_lost(how: Broken) -> str:
    """Dropped while the exporter waits or tries again; after a 500 it does neither, but loses what it had."""
    return "Failed to export spans batch code: 500" if how is Broken.FAILS else "Queue full, dropping Span"


async def submit(client: httpx.AsyncClient) -> tuple[str, float]:
    """The run, and how long the answer took."""
    begun = time.perf_counter()
    answer = await client.post("/runs", json={"flow_name": "hello"}, headers=ANONYMOUS)
    took = time.perf_counter() - begun
    assert answer.status_code == 200, answer.text
    return answer.json()["run_id"], took


@pytest.mark.alone
@pytest.mark.parametrize("how", Broken)
async def test_submits_are_answered_as_if_the_collector_were_well_or_there_were_none(
    how: Broken, nats_servers: list[NatsServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with broken_collector(how) as env, Receiver() as receiver:
        broken = runs_api(tmp_path / "broken", nats_servers[0], **env, **SMALL_QUEUE)
        well = runs_api(tmp_path / "well", nats_servers[1], **receiver.env)
        none = runs_api(tmp_path / "none", nats_servers[2])
        async with none.serving() as none_client, well.serving() as well_client:
            async with broken.serving() as broken_client:
                clients = {"broken": broken_client, "well": well_client, "none": none_client}
                times: dict[str, list[float]] = {name: [] for name in clients}
                # In turns, so that all have the same neighbours on this machine.
                for _ in range(SUBMITS):
                    for name, client in clients.items():
                        times[name].append((await submit(client))[1])
                stopping_since = time.monotonic()
            stop_seconds = time.monotonic() - stopping_since
        assert receiver.spans
    p50 = {name: statistics.median(seconds) for name, seconds in times.items()}
    with capsys.disabled():
        figures = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in p50.items())
        print(f"\n[figures] the collector {how}: p50 of a submit {figures}; stopped after {stop_seconds:.1f} s")
    # All have the same share of a busy machine's noise: there they differ by a fifth and by half at most.
    assert p50["broken"] < 1.6 * p50["well"]
    assert p50["broken"] < 2.5 * p50["none"]
    # A request that waited for the collector would take seconds.
    assert max(times["broken"]) < 5
    assert not any("cannot be exported" in message for message in warnings_of(well.log.read_text()))
    warnings_of_broken = warnings_of(broken.log.read_text())
    assert 1 <= len(warnings_of_broken) <= 3, warnings_of_broken
    assert any(how_spans_are_lost(how) in message for message in warnings_of_broken), warnings_of_broken


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
        assert len(warnings_of(worker.log)) <= 3, warnings_of(worker.log)

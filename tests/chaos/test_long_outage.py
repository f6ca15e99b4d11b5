"""NATS is away for long: nobody gives up, and when it is back everything goes on by itself."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.runs import submit, wait_ended, wait_status
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

pytestmark = pytest.mark.long

# As good as three minutes: requests give up after 5 s, connects after 2 s, pulls after 5 s, and a connection is tried
# again every quarter of a second, so by now more often than the 60 times after which the library would give up by
# default. Nobody counts beyond that.
AWAY_SECONDS = 18.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """A NATS that nobody starts again but the test."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def fresh(tmp_path: Path, server: NatsServer, flows_dir: Path) -> Iterator[Stack]:
    """A stack that has seen no run yet."""
    options = ("--nats-url", server.url, "--slots", "1", "--flows-dir", str(flows_dir))
    with Stack(tmp_path / "data", *options, with_nats=False) as stack:
        yield stack


def assert_everything_is_empty_and_fine(stack: Stack) -> None:
    for path, empty in (("/runs", []), ("/dlq", {"items": [], "next_cursor": None, "total_open": 0})):
        answer = stack.client.get(path)
        assert (answer.status_code, answer.json()) == (httpx.codes.OK, empty)
    assert stack.client.get("/workers").status_code == httpx.codes.OK
    metrics = stack.client.get("/metrics")
    assert metrics.status_code == httpx.codes.OK
    assert 'pyoco_runs_total{status="COMPLETED"} 0.0' in metrics.text


def watch(url: str, run_id: str, heard: list[str]) -> None:
    """Note the states that a watcher hears until the stream ends."""
    with (
        httpx.Client(base_url=url, timeout=60) as client,
        client.stream("GET", f"/runs/{run_id}/watch", params={"timeout_sec": 120}) as answer,
    ):
        for line in answer.iter_lines():
            if line.startswith("data: ") and (snapshot := json.loads(line.removeprefix("data: ")).get("snapshot")):
                heard.append(snapshot["status"])  # noqa: PERF401 - while the stream goes on


def test_worker_gateway_and_watchers_outlive_a_long_outage(fresh: Stack, server: NatsServer, marks: Path) -> None:
    assert_everything_is_empty_and_fine(fresh)
    # It ends while NATS is away, so its end has to be kept until it can be written.
    run_id = submit(fresh.client, "marked", marks=str(marks), label="run", seconds=AWAY_SECONDS / 2)
    held = wait_status(fresh.client, run_id, RunStatus.RUNNING)
    assert held["worker_id"] in {worker["worker_id"] for worker in fresh.client.get("/workers").json()}
    queued = submit(fresh.client, "marked", marks=str(marks), label="queued")
    heard: list[str] = []
    with ThreadPoolExecutor(1) as threads:
        watching = threads.submit(watch, fresh.url, run_id, heard)
        wait_until(lambda: heard, what="the watcher hearing something")
        server.kill()
        back_at = time.monotonic() + AWAY_SECONDS

        def is_refused_until_the_time_is_over() -> bool:
            answer = fresh.client.post("/runs", json={"flow_name": "marked"})
            assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
            assert fresh.client.get("/health").status_code == httpx.codes.OK
            return time.monotonic() > back_at

        wait_until(is_refused_until_the_time_is_over, within=AWAY_SECONDS + 5, what="the end of the outage")
        server.start()
        # A job that was handed out to nobody in the moments of the outage comes again after AckWait, 30 s.
        ended = wait_ended(fresh.client, [run_id, queued], within=75)
        watching.result(timeout=30)

    assert [(snapshot["status"], snapshot["attempt"]) for snapshot in ended] == [("COMPLETED", 1)] * 2
    assert marks.read_text().split() == ["run", "queued"]
    assert (heard[0], heard[-1]) == ("RUNNING", "COMPLETED")
    wanted = {"flow_name": "marked", "params": {"marks": str(marks), "label": "after"}}
    wait_until(lambda: fresh.client.post("/runs", json=wanted).is_success, within=30, what="runs accepted")
    assert {part["name"]: part["restarts"] for part in fresh.parts.values()} == dict.fromkeys(fresh.parts, 0)

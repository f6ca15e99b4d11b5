"""A stack that has seen some of everything, and what each of its parts tells to whoever scrapes it."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from fleet_testkit.nats_server import free_port
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.scrapes import Scrape
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

ROOT = Path(__file__).parents[2]
OBSERVABILITY = ROOT / "observability"
SERVICES = ("runs-api", "workers-api", "wheels-api", "auth")
MOST_FLOWS = 20


@pytest.fixture(scope="session")
def schema() -> dict[str, Any]:
    described: dict[str, Any] = yaml.safe_load((OBSERVABILITY / "schema.yaml").read_text())
    return described


@pytest.fixture(scope="session")
def worker_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory, worker_port: int) -> Iterator[Stack]:
    """With runs of far more flows than may have series of their own."""
    env = {
        "PYOCO_MONITOR_PORT": str(worker_port),
        "PYOCO_WHEEL_SYNC_ENABLED": "1",
        "PYOCO_METRICS_MAX_FLOWS": str(MOST_FLOWS),
        "PYOCO_REVISION": "abc123",
    }
    with Stack(tmp_path_factory.mktemp("played") / "data", "--slots", "2", env=env) as stack:
        run_ids = [submit(stack.client, "hello", name="metrics") for _ in range(3)]
        invented = {"runs": [{"flow_name": f"invented-{number}"} for number in range(300)]}
        answer = stack.client.post("/runs/batch", json=invented)
        run_ids += [run["run_id"] for run in answer.json()["runs"]]
        submit(stack.client, "hello", tag="nobodys")
        for path in ("/workers", "/wheels", "/dlq", "/nowhere"):
            stack.client.get(path)
        wait_ended(stack.client, run_ids, within=120)
        yield stack


@pytest.fixture(scope="session")
def scrapes(played: Stack, worker_port: int) -> dict[str, Scrape]:
    """By component, taken while somebody watches a run and the workers."""
    waiting = submit(played.client, "hello", tag="nobodys")
    stop = threading.Event()
    watches = [
        threading.Thread(target=_listen, args=(played.url, path, stop), daemon=True)
        for path in (f"/runs/{waiting}/watch", f"/runs/{waiting}/logs?follow=true", "/workers/events")
    ]
    for watch in watches:
        watch.start()

    def look() -> dict[str, Scrape] | None:
        seen = {service: Scrape(_of_service(played, service)) for service in SERVICES}
        seen["worker"] = Scrape(httpx.get(f"http://127.0.0.1:{worker_port}/metrics").text)
        watched = all(seen[service].value("pyoco_http_open_streams") for service in ("runs-api", "workers-api"))
        settled = seen["runs-api"].value("pyoco_queue_jobs", tag="nobodys", state="waiting") == 2
        return seen if watched and settled else None

    try:
        found = wait_until(look, within=60, what="everything being told")
    finally:
        stop.set()
    assert found is not None
    return found


def _of_service(stack: Stack, service: str) -> str:
    # As whoever scrapes the inside: without the gateway's secret.
    with stack.service_client(service, knows_secret=False) as client:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        return answer.text


def _listen(url: str, path: str, stop: threading.Event) -> None:
    with httpx.stream("GET", f"{url}{path}", timeout=60) as answer:
        for _ in answer.iter_lines():
            if stop.is_set():
                return

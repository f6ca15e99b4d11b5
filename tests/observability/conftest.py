"""A stack in which some of everything has happened, and a scrape of each of its parts."""

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from fleet_launcher.stack.ports import is_free
from fleet_testkit.nats_server import free_port
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.scrapes import Scrape
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

ROOT = Path(__file__).parents[2]
OBSERVABILITY = ROOT / "observability"
SERVICES = ("runs-api", "workers-api", "wheels-api", "auth")
MOST_FLOWS = 2


@pytest.fixture(scope="session")
def schema() -> dict[str, Any]:
    described: dict[str, Any] = yaml.safe_load((OBSERVABILITY / "schema.yaml").read_text())
    return described


@pytest.fixture(scope="session")
def metrics_port() -> int:
    """With the next one free as well, for the worker."""
    return wait_until(lambda: next((port for port in [free_port()] if is_free(port + 1)), None)) or 0


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[Stack]:
    """With runs of more flows than may have series of their own, and of far more that nobody knows."""
    env = {
        "PYOCO_WHEEL_SYNC_ENABLED": "1",
        "PYOCO_METRICS_MAX_FLOWS": str(MOST_FLOWS),
        "PYOCO_FLOW_WAIT_SEC": "0",
        "PYOCO_REVISION": "abc123",
    }
    options = ["--slots", "2", "--metrics-port", str(metrics_port)]
    with Stack(tmp_path_factory.mktemp("played") / "data", *options, env=env) as stack:
        wait_ended(stack.client, [submit(stack.client, "hello", name="metrics") for _ in range(3)])
        run_ids = [submit(stack.client, flow) for flow in ("branching", "dag", "failing")]
        invented = {"runs": [{"flow_name": f"invented-{number}"} for number in range(300)]}
        answer = stack.client.post("/runs/batch", json=invented)
        run_ids += [run["run_id"] for run in answer.json()["runs"]]
        submit(stack.client, "hello", tag="nobodys")
        for path in ("/workers", "/wheels", "/dlq", "/nowhere"):
            stack.client.get(path)
        wait_ended(stack.client, run_ids, within=120)
        yield stack


@pytest.fixture(scope="session")
def watched(played: Stack) -> Iterator[Stack]:
    """While somebody follows a run, its output, and the workers."""
    waiting = submit(played.client, "hello", tag="nobodys")
    stop = threading.Event()
    watches = [
        threading.Thread(target=_listen, args=(played.url, path, stop), daemon=True)
        for path in (f"/runs/{waiting}/watch", f"/runs/{waiting}/logs?follow=true", "/workers/events")
    ]
    for watch in watches:
        watch.start()
    yield played
    stop.set()


@pytest.fixture(scope="session")
def scrapes(watched: Stack, metrics_port: int) -> dict[str, Scrape]:
    """By component."""

    def look() -> dict[str, Scrape] | None:
        seen = {service: _scrape(f"http://127.0.0.1:{metrics_port}/{service}/metrics") for service in SERVICES}
        seen["worker"] = _scrape(f"http://127.0.0.1:{metrics_port + 1}/metrics")
        watched = all(seen[service].value("pyoco_http_open_streams") for service in ("runs-api", "workers-api"))
        settled = seen["runs-api"].value("pyoco_queue_jobs", tag="nobodys", state="waiting") == 2
        return seen if watched and settled else None

    found = wait_until(look, within=60, what="every metric exposed")
    assert found is not None
    return found


def _scrape(url: str) -> Scrape:
    answer = httpx.get(url, timeout=30)
    assert answer.status_code == 200, answer.text
    return Scrape(answer.text)


def _listen(url: str, path: str, stop: threading.Event) -> None:
    with suppress(httpx.TransportError), httpx.stream("GET", f"{url}{path}", timeout=60) as answer:
        for _ in answer.iter_lines():
            if stop.is_set():
                return


def metrics_in(query: str) -> set[str]:
    """The metrics that a query asks for, by the names that the schema has."""
    named = set(re.findall(r"\b(?:pyoco|process)_[a-z_]+\b|\bup\b", re.sub(r'"[^"]*"', '""', query)))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in named}

"""Thousands of runs through two workers: none is lost, none is executed twice, and the worker never wedges."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path

import pytest

from fleet_testkit.fleet import Fleet
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire
from fleet_testkit.worker_process import WorkerProcess

RUNS = 5_000
CLIENTS = 16
# A refusal for want of NATS takes five seconds to come.
TRIES = 5

TAG = "load"


@pytest.fixture
def busy(stack: Fleet, tmp_path: Path, flows_dir: Path) -> Iterator[Fleet]:
    """The shared fleet, with two workers for these runs only."""
    with (
        WorkerProcess(stack.nats_url, tmp_path, "load-1", tag=TAG, flows_dir=flows_dir) as first,
        WorkerProcess(stack.nats_url, tmp_path, "load-2", tag=TAG, flows_dir=flows_dir) as second,
    ):
        first.wait_registered(stack.client)
        second.wait_registered(stack.client)
        yield stack


def submit_all(port: int, marks: Path) -> set[str]:
    """Submit from many clients at once; the ids that were answered.

    Who is refused because NATS is busy asks again: of a refused one nothing may be left.
    With the standard library's client: on two cores a richer one would be the slowest part of all.
    """

    def submit_some(numbers: range) -> list[str]:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        run_ids = []
        for number in numbers:
            body = {"flow_name": "marked", "tag": TAG, "params": {"marks": str(marks), "label": str(number)}}
            for _ in range(TRIES):
                connection.request("POST", "/runs", json.dumps(body), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
                if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
                    break
            assert answer.status == HTTPStatus.OK, text
            run_ids.append(json.loads(text)["run_id"])
        connection.close()
        return run_ids

    with ThreadPoolExecutor(CLIENTS) as threads:
        shares = threads.map(submit_some, (range(first, RUNS, CLIENTS) for first in range(CLIENTS)))
        return {run_id for share in shares for run_id in share}


def totals(stack: Fleet) -> dict[str, int]:
    """The counters of the metrics page, by status."""
    lines = [line for line in stack.client.get("/metrics").text.splitlines() if line.startswith("pyoco_runs_total{")]
    return {line.split('"')[1]: int(float(line.rpartition(" ")[2])) for line in lines}


@pytest.mark.alone
def test_five_thousand_tiny_runs_all_end_and_are_executed_once(
    busy: Fleet, marks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = totals(busy)
    begun = time.monotonic()
    run_ids = submit_all(busy.port, marks)
    submitted = time.monotonic()
    assert len(run_ids) == RUNS
    counted = before | {"COMPLETED": before.get("COMPLETED", 0) + RUNS}
    wait_until(lambda: totals(busy) == counted, within=200, what="every run counted as COMPLETED")
    drained = time.monotonic()
    with capsys.disabled():
        print(
            f"\n[figures] {RUNS} runs, 2 workers: submitted in {submitted - begun:.1f} s "
            f"({RUNS / (submitted - begun):.0f}/s), all ended after {drained - begun:.1f} s "
            f"({RUNS / (drained - begun):.0f}/s)"
        )

    assert sorted(marks.read_text().split(), key=int) == [str(number) for number in range(RUNS)]
    of_these = f"FROM runs WHERE tag = '{TAG}'"
    assert {run_id for (run_id,) in busy.ledger_rows(f"SELECT run_id {of_these}")} == run_ids
    # Not how many attempts: on a machine that stands still a claim may go unanswered, and is made again.
    assert busy.ledger_rows(f"SELECT DISTINCT status {of_these}") == [("COMPLETED",)]
    assert busy.ledger_rows(f"SELECT DISTINCT worker_id {of_these} ORDER BY 1") == [("load-1",), ("load-2",)]
    wire = Wire(busy.nats_url)
    wait_until(lambda: wire.queued(TAG) == 0, what="every job acked")
    assert wire.dead_letters(TAG) == []
    for run_id in islice(sorted(run_ids), 20):
        assert busy.client.get(f"/runs/{run_id}").json()["status"] == "COMPLETED"

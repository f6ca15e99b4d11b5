"""NATS is away, perhaps for long: what cannot be promised is refused and leaves no trace, and nobody gives up.

When it is back, everything goes on by itself.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.ledger import accepted_run_ids
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.runs import submit, wait_ended, wait_status
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire

pytestmark = pytest.mark.long

PARAMS = {"marks": "/dev/null", "label": "short"}
SHORT = {"flow_name": "marked", "params": PARAMS}
# As good as three minutes: requests give up after 5 s, connects after 2 s, pulls after 5 s, and a connection is tried
# again every quarter of a second, so by now more often than the 60 times after which the library would give up by
# default. Nobody counts beyond that.
AWAY_SECONDS = 18.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A NATS that nobody starts again but the test."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def orphaned(tmp_path_factory: pytest.TempPathFactory, server: NatsServer, flows_dir: Path) -> Iterator[Stack]:
    options = ("--nats-url", server.url, "--slots", "1", "--flows-dir", str(flows_dir))
    with Stack(tmp_path_factory.mktemp("orphaned") / "data", *options, with_nats=False) as stack:
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


# The first one, of a stack that has seen no run yet.
def test_worker_gateway_and_watchers_outlive_a_long_outage(orphaned: Stack, server: NatsServer, marks: Path) -> None:
    assert_everything_is_empty_and_fine(orphaned)
    # It ends while NATS is away, so its end has to be kept until it can be written.
    run_id = submit(orphaned.client, "marked", marks=str(marks), label="run", seconds=AWAY_SECONDS / 2)
    held = wait_status(orphaned.client, run_id, RunStatus.RUNNING)
    assert held["worker_id"] in {worker["worker_id"] for worker in orphaned.client.get("/workers").json()}
    queued = submit(orphaned.client, "marked", marks=str(marks), label="queued")
    heard: list[str] = []
    with ThreadPoolExecutor(1) as threads:
        watching = threads.submit(watch, orphaned.url, run_id, heard)
        wait_until(lambda: heard, what="the watcher hearing something")
        server.kill()
        back_at = time.monotonic() + AWAY_SECONDS

        def is_refused_until_the_time_is_over() -> bool:
            answer = orphaned.client.post("/runs", json={"flow_name": "marked"})
            assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
            assert orphaned.client.get("/health").status_code == httpx.codes.OK
            return time.monotonic() > back_at

        wait_until(is_refused_until_the_time_is_over, within=AWAY_SECONDS + 5, what="the end of the outage")
        server.start()
        # A job that was handed out to nobody in the moments of the outage comes again after AckWait, 30 s.
        ended = wait_ended(orphaned.client, [run_id, queued], within=75)
        watching.result(timeout=30)

    assert [(snapshot["status"], snapshot["attempt"]) for snapshot in ended] == [("COMPLETED", 1)] * 2
    assert marks.read_text().split() == ["run", "queued"]
    assert (heard[0], heard[-1]) == ("RUNNING", "COMPLETED")
    wanted = {"flow_name": "marked", "params": {"marks": str(marks), "label": "after"}}
    wait_until(lambda: orphaned.client.post("/runs", json=wanted).is_success, within=30, what="runs accepted")
    assert {part["name"]: part["restarts"] for part in orphaned.parts.values()} == dict.fromkeys(orphaned.parts, 0)


def assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
    assert answer.json()["error"]["code"] == "DEPENDENCY_ERROR"
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
    assert answer.json()["error"]["meta"]["retryable"] is True


def submit_when_possible(stack: Stack) -> str:
    answer = wait_until(
        lambda: answer if (answer := stack.client.post("/runs", json=SHORT)).is_success else None,
        within=20,
        what="runs accepted again",
    )
    run_id: str = answer.json()["run_id"]
    return run_id


def test_a_submit_while_nats_is_down_is_refused_and_leaves_nothing(orphaned: Stack, server: NatsServer) -> None:
    first = submit(orphaned.client, "marked", **PARAMS)
    wait_ended(orphaned.client, [first])
    before = accepted_run_ids(orphaned)
    server.kill()
    for _ in range(5):
        assert_refused(orphaned.client.post("/runs", json=SHORT))
    assert accepted_run_ids(orphaned) == before
    assert {run["run_id"] for run in orphaned.client.get("/runs").json()} == before
    assert orphaned.client.get("/health").status_code == httpx.codes.OK

    server.start()
    second = submit_when_possible(orphaned)
    [ended] = wait_ended(orphaned.client, [second])
    assert ended["status"] == "COMPLETED"
    assert accepted_run_ids(orphaned) == Wire(server.url).run_ids() == before | {second}
    restarts = {part["name"]: part["restarts"] for part in orphaned.parts.values()}
    assert set(restarts.values()) == {0}, restarts


def test_submits_that_race_with_the_death_of_nats_are_either_answered_or_nowhere(
    orphaned: Stack, server: NatsServer
) -> None:
    before = accepted_run_ids(orphaned)
    with httpx.Client(base_url=orphaned.url, timeout=30) as client, ThreadPoolExecutor(16) as threads:
        answers = [threads.submit(client.post, "/runs", json=SHORT) for _ in range(400)]
        wait_until(lambda: sum(answer.done() for answer in answers) >= 100, what="a hundred answers")
        server.kill()
        done = [answer.result() for answer in answers]
    answered = [answer.json()["run_id"] for answer in done if answer.is_success]
    refused = [answer for answer in done if not answer.is_success]
    assert len(answered) >= 100
    assert refused
    for answer in refused:
        assert_refused(answer)

    server.start()
    last = submit_when_possible(orphaned)
    ended = wait_ended(orphaned.client, [*answered, last], within=60)
    assert {snapshot["status"] for snapshot in ended} == {"COMPLETED"}
    wanted = before | {*answered, last}
    assert accepted_run_ids(orphaned) == wanted
    wait_until(lambda: Wire(server.url).run_ids() == wanted, what="nothing of the refused runs left in KV")
    # An ack that died with the server is given when the job comes again, after AckWait.
    wait_until(lambda: Wire(server.url).queued("default") == 0, within=45, what="every job acked")

"""NATS is away: what cannot be promised is refused and leaves no trace; when it is back, work goes on by itself."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from fleet_testkit.ledger import accepted_run_ids
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire

HELLO = {"flow_name": "hello", "params": {"name": "Ada"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A NATS that nobody starts again but the test."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def orphaned(tmp_path_factory: pytest.TempPathFactory, server: NatsServer) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("orphaned")
    with Stack(folder / "data", "--nats-url", server.url, with_nats=False) as stack:
        yield stack


def assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
    assert answer.json()["error"]["code"] == "DEPENDENCY_ERROR"
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0003"
    assert answer.json()["error"]["meta"]["retryable"] is True


def submit_when_possible(stack: Stack) -> str:
    answer = wait_until(
        lambda: answer if (answer := stack.client.post("/runs", json=HELLO)).is_success else None,
        within=20,
        what="runs accepted again",
    )
    run_id: str = answer.json()["run_id"]
    return run_id


def test_a_submit_while_nats_is_down_is_refused_and_leaves_nothing(orphaned: Stack, server: NatsServer) -> None:
    first = submit(orphaned.client, "hello")
    wait_ended(orphaned.client, [first])
    server.kill()
    for _ in range(5):
        assert_refused(orphaned.client.post("/runs", json=HELLO))
    assert accepted_run_ids(orphaned) == {first}
    assert [run["run_id"] for run in orphaned.client.get("/runs").json()] == [first]
    assert orphaned.client.get("/health").status_code == httpx.codes.OK

    server.start()
    second = submit_when_possible(orphaned)
    [ended] = wait_ended(orphaned.client, [second])
    assert ended["status"] == "COMPLETED"
    assert accepted_run_ids(orphaned) == Wire(server.url).run_ids() == {first, second}
    restarts = {part["name"]: part["restarts"] for part in orphaned.parts.values()}
    assert set(restarts.values()) == {0}, restarts


def test_submits_that_race_with_the_death_of_nats_are_either_answered_or_nowhere(
    orphaned: Stack, server: NatsServer
) -> None:
    before = accepted_run_ids(orphaned)
    with httpx.Client(base_url=orphaned.url, timeout=30) as client, ThreadPoolExecutor(16) as threads:
        answers = [threads.submit(client.post, "/runs", json=HELLO) for _ in range(400)]
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

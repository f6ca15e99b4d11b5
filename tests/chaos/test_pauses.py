"""NATS stands still and goes on, around every timeout: what was refused never runs, what was accepted runs soon."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from fleet_testkit.ledger import accepted_run_ids
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

REQUEST_TIMEOUT = 2.0
# Three pings of 2 s without an answer: then a connection counts as gone.
LINK_SILENCE = 6.0
PAUSES = (REQUEST_TIMEOUT - 0.4, REQUEST_TIMEOUT + 0.4, LINK_SILENCE - 0.4, LINK_SILENCE + 0.6)
SUBMITTERS = 8


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """A NATS that nobody starts again but the test."""
    with NatsServer(tmp_path / "nats").running() as server:
        yield server


@pytest.fixture
def paused(tmp_path: Path, server: NatsServer, flows_dir: Path) -> Iterator[Stack]:
    """JetStream itself delivers nothing again before these tests give up: AckWait is ten minutes."""
    options = ("--nats-url", server.url, "--workers", "2", "--slots", "2", "--flows-dir", str(flows_dir))
    env = {"PYOCO_CONSUMER_ACK_WAIT_SEC": "600", "PYOCO_NATS_REQUEST_TIMEOUT_SEC": f"{REQUEST_TIMEOUT}"}
    with Stack(tmp_path / "data", *options, with_nats=False, env=env) as stack:
        yield stack


def submit_until_accepted(stack: Stack, label: str, marks: Path) -> str:
    """Like a client that sends a refused request again under its key."""
    with httpx.Client(base_url=stack.url, timeout=30) as client:

        def accepted() -> str | None:
            answer = client.post(
                "/runs",
                json={"flow_name": "marked", "params": {"marks": str(marks), "label": label}},
                headers={"Idempotency-Key": f"pauses:{label}:1760000000000"},
            )
            assert answer.status_code in (httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE), answer.text
            return answer.json()["run_id"] if answer.is_success else None

        run_id = wait_until(accepted, within=90, what=f"run {label} being accepted")
        assert run_id is not None
        return run_id


def test_what_was_refused_never_runs_and_what_was_accepted_runs_soon_after_a_pause(
    paused: Stack, server: NatsServer, marks: Path
) -> None:
    submit(paused.client, "marked", marks=str(marks), label="first")
    runs = {"first": next(iter(accepted_run_ids(paused)))}
    for number, seconds in enumerate(PAUSES):
        labels = [f"{number}-{one}" for one in range(SUBMITTERS)]
        with ThreadPoolExecutor(SUBMITTERS) as threads:
            submitting = [threads.submit(submit_until_accepted, paused, label, marks) for label in labels]
            wait_until(lambda found=submitting: any(one.done() for one in found), what="a first answer")
            server.pause()
            goes_on_at = time.monotonic() + seconds
            wait_until(lambda at=goes_on_at: time.monotonic() > at, within=seconds + 30, what="the pause being over")
            server.resume()
            healed_at = time.monotonic()
            runs |= dict(zip(labels, [one.result() for one in submitting], strict=True))
        ended = wait_ended(paused.client, runs.values(), within=120)
        print(f"paused for {seconds:.1f} s; the last run had ended {time.monotonic() - healed_at:.1f} s later")
        assert {run["status"] for run in ended} == {"COMPLETED"}

    assert len(set(runs.values())) == len(runs)
    assert accepted_run_ids(paused) == set(runs.values())
    # Effects are counted outside of the fleet: an execution that it does not know of would leave a mark, too.
    attempts = {
        label: len(paused.client.get(f"/runs/{run_id}/attempts").json()["attempts"]) for label, run_id in runs.items()
    }
    executions = Counter(marks.read_text().split())
    assert executions.keys() == runs.keys()
    # A claim that NATS took without saying so is an attempt, too, and was never executed.
    assert {label: times for label, times in executions.items() if times > attempts[label]} == {}

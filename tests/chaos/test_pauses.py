"""NATS stands still and goes on, around every timeout: what was refused never runs, what was accepted runs soon."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet_testkit.chaos.retrying_submits import executions, submit_until_accepted
from fleet_testkit.ledger import accepted_run_ids
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.runs import wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

pytestmark = pytest.mark.long

REQUEST_TIMEOUT = 2.0
# Of a holder, and of the outbox before it sends what a process has not (the request timeout and 2 s): both 4 s.
LOST_AFTER = 4.0
# Three pings of 2 s without an answer: then a connection counts as gone.
LINK_SILENCE = 6.0
ACK_WAIT = 8.0
SUBMITTERS = 8
# What is promised, and twice as much again for a machine that others use.
MOST_SECONDS = 10.0 + 20.0
# A submit that is sent at once must then have been refused before NATS goes on.
CERTAINLY_REFUSED = REQUEST_TIMEOUT + 1.0


def around(timeout: float) -> tuple[float, float]:
    return (timeout - 0.4, timeout + 0.6)


def submit_around_a_pause(
    stack: Stack, server: NatsServer, labels: Sequence[str], marks: Path, *, seconds: float
) -> tuple[dict[str, str], list[str], float]:
    """Half of them are sent just before, the others during it: the run ids, who was refused, and when it was over."""
    refused: list[str] = []
    with ThreadPoolExecutor(len(labels)) as threads:

        def start(some: Sequence[str]) -> list[Future[str]]:
            return [threads.submit(submit_until_accepted, stack, one, marks, refused=refused) for one in some]

        submitting = start(labels[: len(labels) // 2])
        wait_until(lambda: any(one.done() for one in submitting), what="a first answer")
        server.pause()
        goes_on_at = time.monotonic() + seconds
        submitting += start(labels[len(submitting) :])
        wait_until(lambda: time.monotonic() > goes_on_at, within=seconds + 30, what="the pause over")
        server.resume()
        healed_at = time.monotonic()
        runs = {label: one.result() for label, one in zip(labels, submitting, strict=True)}
    return runs, refused, healed_at


@pytest.mark.parametrize(
    ("ack_wait", "pauses"),
    [
        # JetStream itself delivers nothing again before the test gives up.
        pytest.param(600.0, around(REQUEST_TIMEOUT) + around(LOST_AFTER) + around(LINK_SILENCE), id="others"),
        pytest.param(ACK_WAIT, around(ACK_WAIT), id="AckWait"),
    ],
)
def test_what_was_refused_never_runs_and_what_was_accepted_runs_soon_after_a_pause(
    ack_wait: float, pauses: Sequence[float], tmp_path: Path, flows_dir: Path, marks: Path
) -> None:
    env = {"PYOCO_CONSUMER_ACK_WAIT_SEC": f"{ack_wait}", "PYOCO_NATS_REQUEST_TIMEOUT_SEC": f"{REQUEST_TIMEOUT}"}
    options = ("--workers", "2", "--slots", "2", "--flows-dir", str(flows_dir))
    with (
        NatsServer(tmp_path / "nats").running() as server,
        Stack(tmp_path / "data", "--nats-url", server.url, *options, with_nats=False, env=env) as stack,
    ):
        runs = {"first": submit_until_accepted(stack, "first", marks)}
        for number, seconds in enumerate(pauses):
            # One is in a worker's hands all the time, and ends when NATS hears nothing.
            held = f"{number}-held"
            runs[held] = submit_until_accepted(stack, held, marks, seconds=seconds - 0.5)
            wait_until(lambda of=held: of in marks.read_text(), what="the run executed")
            labels = [f"{number}-{one}" for one in range(SUBMITTERS)]
            accepted, refused, healed_at = submit_around_a_pause(stack, server, labels, marks, seconds=seconds)
            runs |= accepted
            ended = wait_ended(stack.client, runs.values(), within=120)
            took_seconds = time.monotonic() - healed_at
            print(
                f"paused for {seconds:.1f} s, {len(refused)} submits refused; "
                f"the last run had ended {took_seconds:.1f} s later"
            )
            assert took_seconds <= MOST_SECONDS
            # Otherwise the test would show nothing of what becomes of a refused submit.
            assert refused or seconds < CERTAINLY_REFUSED
            assert {run["status"] for run in ended} == {"COMPLETED"}

        assert len(set(runs.values())) == len(runs)
        assert accepted_run_ids(stack) == set(runs.values())
        executed = executions(marks)
        assert executed.keys() == set(runs.items())
        # A claim that NATS took without saying so is an attempt, too, and was never executed.
        attempts = {
            run_id: len(stack.client.get(f"/runs/{run_id}/attempts").json()["attempts"]) for run_id in runs.values()
        }
        assert {one: times for one, times in executed.items() if times > attempts[one[1]]} == {}

"""The states of a job in hand: every request from outside in every state, as a table."""

import asyncio
from typing import Any, cast

import pytest

from fleet_worker.job.states import (
    Claiming,
    Concluding,
    Declining,
    Killed,
    NotClaimed,
    Running,
    State,
    StopReason,
    WaitingForRunner,
    cancelled,
    claimed,
    declined,
    offered_nowhere,
    over,
    stopped,
    without_flow,
)

# The transitions only pass these on.
HELD, TURN, RUNNER = cast(Any, "held"), cast(Any, "turn"), cast(Any, "runner")
WAITING = WaitingForRunner(HELD, TURN)
RUNNING = Running(HELD, RUNNER)
CANCELLED_RUNNING = Running(HELD, RUNNER, cancelled_at=1.0)
FENCED = Concluding(HELD, StopReason.FENCED)
KILLED = Killed(HELD, RUNNER, StopReason.MEMORY)


@pytest.mark.parametrize("why", StopReason)
def test_a_stop_ends_what_goes_on_and_the_first_reason_decides(why: StopReason) -> None:
    assert stopped(WAITING, why) == Concluding(HELD, why)
    assert stopped(RUNNING, why) == stopped(CANCELLED_RUNNING, why) == Killed(HELD, RUNNER, why)
    for state in (NotClaimed(), KILLED, FENCED, Concluding(HELD)):
        assert stopped(state, why) is state


def test_a_declined_job_is_kept_until_it_is_claimed_after_all_or_the_worker_stops() -> None:
    declining = Declining(asyncio.Event())
    assert declined(Claiming(), declining.given_up) == declining
    assert offered_nowhere(declining) == Claiming()
    assert stopped(declining, StopReason.STOPPING) == over(declining) == NotClaimed()
    assert declined(Claiming(is_stopping=True), declining.given_up) == NotClaimed()
    assert offered_nowhere(NotClaimed()) == NotClaimed()
    for why in set(StopReason) - {StopReason.STOPPING}:
        assert stopped(declining, why) is declining


def test_a_worker_that_stops_during_a_claim_hands_the_run_back_once_it_is_claimed() -> None:
    stopping = stopped(Claiming(), StopReason.STOPPING)
    assert stopping == Claiming(is_stopping=True)
    assert claimed(stopping, HELD, TURN) == Concluding(HELD, StopReason.STOPPING)
    assert claimed(Claiming(), HELD, TURN) == WAITING


def test_a_cancel_lets_a_waiting_run_never_begin_and_is_passed_on_to_a_runner_once() -> None:
    assert cancelled(WAITING, at=2.0) == Concluding(HELD, StopReason.CANCELLED)
    assert cancelled(RUNNING, at=1.0) == CANCELLED_RUNNING
    for state in (Claiming(), NotClaimed(), CANCELLED_RUNNING, KILLED, FENCED):
        assert cancelled(state, at=2.0) is state


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (RUNNING, WAITING),
        (CANCELLED_RUNNING, Concluding(HELD, StopReason.CANCELLED)),
        (KILLED, Concluding(HELD, StopReason.MEMORY)),
    ],
)
def test_a_run_whose_flow_is_missing_waits_for_a_wheel_unless_it_was_to_end(state: State, after: State) -> None:
    assert without_flow(state, TURN) == after


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (Claiming(), NotClaimed()),
        (NotClaimed(), NotClaimed()),
        (WAITING, Concluding(HELD)),
        (RUNNING, Concluding(HELD)),
        (CANCELLED_RUNNING, Concluding(HELD)),
        (KILLED, Concluding(HELD, StopReason.MEMORY)),
        (FENCED, FENCED),
    ],
)
def test_an_attempt_that_is_over_keeps_the_reason_it_was_stopped_for(state: State, after: State) -> None:
    assert over(state) == after

"""Outcomes and what they mean for the queue: the table of appendix E."""

from typing import get_args

import orjson
import pytest

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_worker.job.disposition import (
    AlreadyEnded,
    DeclinedJob,
    Disposition,
    Ended,
    Fenced,
    HandedBack,
    HeldElsewhere,
    InvalidJob,
    NotYet,
    Outcome,
    RetryScheduled,
    RunMissing,
    Unrecorded,
    dispose,
)

PENDING = RunSnapshot.pending(Job(run_id="r1", flow_name="f", tag="default", submitted_at=1.0), now=1.0)
COMPLETED = PENDING.finish(RunStatus.COMPLETED, now=2.0)
FAILED = PENDING.finish(RunStatus.FAILED, now=2.0, error="too late", reason="deadline_exceeded")
EXECUTION_ERROR = Ended(RunStatus.FAILED, "ValueError: boom", DeadLetterReason.EXECUTION_ERROR)
DEADLINE_EXCEEDED = Ended(RunStatus.FAILED, "too late", DeadLetterReason.DEADLINE_EXCEEDED)


TABLE: list[tuple[Outcome, Disposition]] = [
    (InvalidJob("no JSON"), Disposition(b"+TERM", DeadLetterReason.INVALID_JOB)),
    (RunMissing("none", given_up=False), Disposition(b'-NAK {"delay":1000000000}')),
    (RunMissing("none", given_up=True), Disposition(b"+TERM", DeadLetterReason.RUN_NOT_FOUND)),
    (AlreadyEnded(COMPLETED), Disposition(b"+ACK")),
    (AlreadyEnded(FAILED), Disposition(b"+ACK", DeadLetterReason.DEADLINE_EXCEEDED)),
    (AlreadyEnded(FAILED.model_copy(update={"reason": None})), Disposition(b"+ACK")),
    (Ended(RunStatus.COMPLETED), Disposition(b"+ACK")),
    (Ended(RunStatus.CANCELLED), Disposition(b"+ACK")),
    (EXECUTION_ERROR, Disposition(b"+ACK", DeadLetterReason.EXECUTION_ERROR)),
    (
        Ended(RunStatus.FAILED, "no such flow", DeadLetterReason.FLOW_NOT_FOUND),
        Disposition(b"+ACK", DeadLetterReason.FLOW_NOT_FOUND),
    ),
    (DEADLINE_EXCEEDED, Disposition(b"+ACK", DeadLetterReason.DEADLINE_EXCEEDED)),
    (Ended(RunStatus.FAILED, "no reason given"), Disposition(b"+ACK", DeadLetterReason.EXECUTION_ERROR)),
    (Ended(RunStatus.CANCELLED, "stopped"), Disposition(b"+ACK")),
    (RetryScheduled(), Disposition(b"+ACK")),
    (NotYet(1.5), Disposition(b'-NAK {"delay":1500000000}')),
    (Unrecorded("NATS is away"), Disposition(b'-NAK {"delay":2000000000}')),
    (HeldElsewhere(5.0), Disposition(b'-NAK {"delay":5000000000}')),
    (HandedBack(0.0), Disposition(b"-NAK")),
    (DeclinedJob(0.2), Disposition(b'-NAK {"delay":200000000}')),
    (DeclinedJob(0.0), Disposition(b"-NAK")),
    # The worker that has it now answers it.
    (DeclinedJob(None), Disposition(None)),
    (Fenced(), Disposition(None)),
]


@pytest.mark.parametrize(("outcome", "expected"), TABLE)
def test_each_outcome_has_one_answer(outcome: Outcome, expected: Disposition) -> None:
    assert dispose(outcome, num_delivered=1, nak_delay_sec=2.0, publish_execution_error=True) == expected


def test_dead_letters_of_execution_errors_can_be_switched_off_and_only_those() -> None:
    assert dispose(EXECUTION_ERROR, num_delivered=1, nak_delay_sec=2.0, publish_execution_error=False) == Disposition(
        b"+ACK"
    )
    late = dispose(DEADLINE_EXCEEDED, num_delivered=1, nak_delay_sec=2.0, publish_execution_error=False)
    assert late == Disposition(b"+ACK", DeadLetterReason.DEADLINE_EXCEEDED)


@pytest.mark.parametrize("outcome", [HandedBack(0.0), NotYet(0.05), Unrecorded("refused")])
def test_a_job_that_goes_back_again_and_again_does_so_with_a_growing_pause(outcome: Outcome) -> None:
    """The worker that gave it back may be the one that is handed it next: deliveries must not run out in a burst."""

    def delay_seconds(num_delivered: int) -> float:
        answer = dispose(outcome, num_delivered=num_delivered, nak_delay_sec=0.0, publish_execution_error=True).answer
        assert answer is not None
        return float(orjson.loads(answer.removeprefix(b"-NAK") or b'{"delay": 0}')["delay"]) / 1e9

    assert delay_seconds(1) <= 0.05
    assert [delay_seconds(n) for n in (2, 3, 4)] == [0.1, 0.2, 0.4]
    assert delay_seconds(1_000_000) == 2.0
    # Twenty deliveries, as many as a job has unless it is set, last for as long as a worker needs to start.
    assert sum(map(delay_seconds, range(1, 20))) > 20


def test_no_outcome_gives_a_job_back_for_the_second_time_without_a_pause() -> None:
    assert {type(outcome) for outcome, _ in TABLE} == set(get_args(Outcome))
    for outcome, _ in TABLE:
        answer = dispose(outcome, num_delivered=2, nak_delay_sec=0.0, publish_execution_error=True).answer
        if answer is not None and answer.startswith(b"-NAK"):
            assert orjson.loads(answer.removeprefix(b"-NAK"))["delay"] >= 0.1e9, outcome

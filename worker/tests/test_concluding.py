"""What an attempt's end makes of the run: the rule as a table."""

import pytest

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.retry import RetryPolicy
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_worker.boundary.frames import Conclusion
from fleet_worker.job.rules import conclude

POLICY = RetryPolicy(max_attempts=3, base_seconds=10.0, cap_seconds=15.0, jitter=0.0)
JOB = Job(run_id="r1", flow_name="hello", tag="default", submitted_at=1.0, retry=POLICY)
HELD = RunSnapshot.pending(JOB, now=1.0).claim(worker_id="w1", worker_instance_id="me", ack_subject="a", now=2.0)
RAISED = Conclusion(
    RunStatus.FAILED,
    "ValueError: boom",
    DeadLetterReason.EXECUTION_ERROR,
    tasks={"a": TaskStatus.FAILED},
    task_records={"a": {"traceback": "…"}},
    flow_failed=True,
)


def concluded(snapshot: RunSnapshot, conclusion: Conclusion) -> RunSnapshot:
    return conclude(snapshot, conclusion, now=100.0, chance=0.5)


def test_a_flow_that_fails_waits_longer_each_time_and_then_fails_for_good() -> None:
    first = concluded(HELD, RAISED)
    assert (first.status, first.not_before, first.failures) == (RunStatus.PENDING, 110.0, 1)
    assert (first.error, first.reason) == ("ValueError: boom", "execution_error")
    assert first.retry_of_attempt == 1
    # What went wrong stays to be seen while the run waits.
    assert (first.tasks, first.task_records) == (RAISED.tasks, RAISED.task_records)
    second = concluded(first.claim(worker_id="w2", worker_instance_id="b", ack_subject=None, now=110.0), RAISED)
    assert (second.not_before, second.failures) == (115.0, 2)
    last = concluded(second.claim(worker_id="w1", worker_instance_id="me", ack_subject=None, now=115.0), RAISED)
    assert (last.status, last.failures, last.reason) == (RunStatus.FAILED, 3, "execution_error")
    assert [(one.attempt, one.worker_id, one.error) for one in last.earlier_attempts] == [
        (1, "w1", "ValueError: boom"),
        (2, "w2", "ValueError: boom"),
    ]


@pytest.mark.parametrize(("deadline_at", "status"), [(109.0, RunStatus.FAILED), (111.0, RunStatus.PENDING)])
def test_a_retry_that_could_not_begin_before_the_deadline_is_not_waited_for(
    deadline_at: float, status: RunStatus
) -> None:
    last = concluded(HELD.model_copy(update={"deadline_at": deadline_at}), RAISED)
    assert (last.status, last.reason) == (status, "execution_error")


@pytest.mark.parametrize(
    "conclusion",
    [
        Conclusion(RunStatus.FAILED, "not here", DeadLetterReason.FLOW_NOT_FOUND),
        Conclusion(RunStatus.FAILED, "not allowed", DeadLetterReason.CALLABLE_NOT_ALLOWED),
        Conclusion(RunStatus.FAILED, "too late", DeadLetterReason.DEADLINE_EXCEEDED),
        # Its runner died too often: that is an execution error, but no failure of the flow.
        Conclusion(RunStatus.FAILED, "runner process died", DeadLetterReason.EXECUTION_ERROR),
    ],
)
def test_what_is_no_failure_of_the_flow_is_not_tried_again(conclusion: Conclusion) -> None:
    last = concluded(HELD, conclusion)
    assert (last.status, last.reason, last.error) == (RunStatus.FAILED, conclusion.reason, conclusion.error)


def test_a_run_that_somebody_wants_ended_is_not_tried_again() -> None:
    last = concluded(HELD.request_cancel(by="ada", now=50.0), RAISED)
    assert (last.status, last.error, last.reason) == (RunStatus.CANCELLED, "ValueError: boom", None)


def test_a_run_that_was_complete_when_its_cancel_came_is_complete() -> None:
    last = concluded(HELD.request_cancel(by="ada", now=50.0), Conclusion(RunStatus.COMPLETED, result=[1]))
    assert (last.status, last.result) == (RunStatus.COMPLETED, [1])


def test_a_run_without_a_policy_fails_at_once() -> None:
    last = concluded(HELD.model_copy(update={"retry": None}), RAISED)
    assert (last.status, last.failures, last.not_before) == (RunStatus.FAILED, 1, None)


def test_what_was_left_out_is_marked() -> None:
    last = concluded(
        HELD, Conclusion(RunStatus.COMPLETED, tasks={}, task_records_truncated=True, result_truncated=True)
    )
    assert last.task_records_truncated
    assert last.result_truncated

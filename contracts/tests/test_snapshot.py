"""The allowed and the refused changes of a run's snapshot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_contracts.job import Job
from fleet_contracts.snapshot import AttemptOutcome, IllegalTransition, RunSnapshot
from fleet_contracts.status import TERMINAL_RUN_STATUSES, RunStatus, TaskStatus
from fleet_contracts.wheel import WheelInUse

JOB = Job(run_id="r1", flow_name="hello", tag="default", submitted_at=1.0)
PENDING = RunSnapshot.pending(JOB, now=1.0)


def claimed(snapshot: RunSnapshot, *, worker: str = "w1", now: float = 2.0) -> RunSnapshot:
    return snapshot.claim(worker_id=worker, worker_instance_id=f"{worker}-1", ack_subject="$JS.ACK.x", now=now)


def change(snapshot: RunSnapshot, move: str, now: float) -> RunSnapshot:
    match move:
        case "claim":
            return claimed(snapshot, now=now)
        case "hand back":
            return snapshot.hand_back(now=now, interrupted=False)
        case "interrupt":
            return snapshot.hand_back(now=now, interrupted=True)
        case "retry":
            return snapshot.retry_later(now=now, not_before=now + 1, error="ValueError: x", reason="execution_error")
        case "cancel":
            return snapshot.request_cancel(by="someone", now=now)
        case "take back":
            return snapshot.take_back(now=now, reason="worker_lost")
        case "end cancelled":
            return snapshot.end_cancelled(now=now)
        case _:
            return snapshot.finish(RunStatus(move), now=now)


MOVES = ["claim", "hand back", "interrupt", "retry", "cancel", "take back", "end cancelled", *RunStatus]


@given(st.lists(st.sampled_from(MOVES), max_size=30))
def test_no_sequence_of_changes_leaves_an_end_forgets_a_cancel_or_lowers_the_attempt(moves: list[str]) -> None:
    snapshot = PENDING
    for step, move in enumerate(moves):
        before = snapshot
        try:
            snapshot = change(before, move, now=2.0 + step)
        except IllegalTransition:
            assert before.is_terminal or RunStatus(move) not in TERMINAL_RUN_STATUSES
        if before.is_terminal:
            assert snapshot == before
        if before.status is RunStatus.CANCELLING:
            assert snapshot.status is RunStatus.CANCELLING or snapshot.is_terminal
            assert snapshot.cancel_requested_at == before.cancel_requested_at
        assert snapshot.attempt >= before.attempt
        assert snapshot.interruptions >= before.interruptions
        assert snapshot.is_held == (snapshot.worker_id is not None and not snapshot.is_terminal)
        assert RunSnapshot.decode(snapshot.encode()) == snapshot


def test_a_claim_begins_a_new_attempt_with_a_clean_slate() -> None:
    first = claimed(PENDING).model_copy(update={"tasks": {"a": TaskStatus.RUNNING}, "task_records": {"a": {}}})
    second = claimed(first.hand_back(now=3.0, interrupted=True), worker="w2", now=4.0)
    assert (first.attempt, second.attempt) == (1, 2)
    assert (second.tasks, second.task_records) == ({}, {})
    assert (second.worker_id, second.start_time, second.interruptions) == ("w2", 4.0, 1)


def test_a_new_attempt_does_not_inherit_the_marks_of_the_one_before() -> None:
    marks = {"tasks_truncated": True, "result_truncated": True, "task_records_truncated": True}
    first = claimed(PENDING).model_copy(update={**marks, "params_truncated": True})
    second = claimed(first.hand_back(now=3.0, interrupted=True), worker="w2", now=4.0)
    assert (second.tasks_truncated, second.result_truncated, second.task_records_truncated) == (False, False, False)
    # The params of a run are the same in each attempt.
    assert second.params_truncated
    assert "result_truncated" not in second.encode().decode()


def test_numbers_of_attempts_that_a_lost_store_may_have_known_are_not_used_again() -> None:
    lost = claimed(PENDING)
    anew = PENDING.skip_attempts(20)
    assert anew.attempt == 0
    again = claimed(anew, worker="w2", now=5.0)
    assert (again.attempt, again.attempt_floor) == (21, None)
    assert anew.skip_attempts(20).attempt_floor == 40
    assert claimed(claimed(PENDING).hand_back(now=3.0, interrupted=True).skip_attempts(5)).attempt == 7

    changed = again.with_lost_attempt(lost, now=6.0)
    assert changed.is_held_by("w2-1", 21)
    [record] = changed.earlier_attempts
    assert (record.attempt, record.outcome, record.worker_id, record.start_time, record.end_time) == (
        1,
        AttemptOutcome.INTERRUPTED,
        "w1",
        2.0,
        6.0,
    )
    assert changed.with_lost_attempt(lost, now=7.0) is changed
    ended = again.finish(RunStatus.COMPLETED, now=7.0)
    assert ended.with_lost_attempt(ended, now=8.0) is ended
    changed = ended.with_lost_attempt(lost, now=8.0)
    assert (changed.status, changed.end_time, changed.earlier_attempts[0].attempt) == (RunStatus.COMPLETED, 7.0, 1)


def test_an_attempt_keeps_when_it_was_due_also_after_its_end() -> None:
    scheduled = RunSnapshot.pending(JOB.model_copy(update={"not_before": 60.0}), now=1.0)
    ended = claimed(scheduled, now=61.0).finish(RunStatus.COMPLETED, now=62.0)
    assert (ended.not_before, ended.due_at) == (None, 60.0)
    again = claimed(claimed(scheduled, now=61.0).hand_back(now=62.0, interrupted=True), now=63.0)
    assert again.due_at is None
    assert b"due_at" not in again.encode()


def test_a_superseded_holder_no_longer_holds_the_run() -> None:
    first = claimed(PENDING)
    assert first.is_held_by("w1-1", attempt=1)
    second = claimed(first, worker="w2")
    assert not second.is_held_by("w1-1", attempt=1)
    assert second.is_held_by("w2-1", attempt=2)
    assert not second.finish(RunStatus.COMPLETED, now=5.0).is_held_by("w2-1", attempt=2)


def test_a_run_handed_back_waits_again_without_a_holder() -> None:
    waiting = claimed(PENDING).hand_back(now=3.0, interrupted=False)
    assert waiting.status is RunStatus.PENDING
    assert not waiting.is_held
    assert (waiting.worker_instance_id, waiting.ack_subject, waiting.interruptions) == (None, None, 0)


def test_asking_twice_for_a_cancel_keeps_the_first_request() -> None:
    once = claimed(PENDING).request_cancel(by="first", now=3.0)
    assert once.request_cancel(by="second", now=4.0) is once
    assert (once.cancel_requested_by, once.cancel_requested_at) == ("first", 3.0)


def test_a_cancel_of_an_ended_run_changes_nothing() -> None:
    ended = claimed(PENDING).finish(RunStatus.COMPLETED, now=3.0)
    assert ended.request_cancel(by="late", now=4.0) is ended


def test_a_run_being_cancelled_stays_so_when_it_changes_hands() -> None:
    cancelling = PENDING.request_cancel(by=None, now=2.0)
    assert claimed(cancelling).status is RunStatus.CANCELLING
    assert claimed(cancelling).hand_back(now=3.0, interrupted=True).status is RunStatus.CANCELLING


@pytest.mark.parametrize("status", [status for status in RunStatus if not status.is_terminal])
def test_a_run_cannot_finish_in_a_state_that_is_no_end(status: RunStatus) -> None:
    with pytest.raises(IllegalTransition, match="is no end of a run"):
        claimed(PENDING).finish(status, now=3.0)


def test_a_refused_change_says_which_run_and_why() -> None:
    ended = PENDING.finish(RunStatus.FAILED, now=2.0, error="gone")
    with pytest.raises(IllegalTransition, match="run r1 is FAILED and cannot be claimed"):
        claimed(ended)


def test_a_failed_attempt_that_may_be_tried_again_waits_and_is_remembered() -> None:
    waiting = claimed(PENDING).retry_later(now=3.0, not_before=5.0, error="ValueError: x", reason="execution_error")
    assert (waiting.status, waiting.failures, waiting.not_before) == (RunStatus.PENDING, 1, 5.0)
    assert not waiting.is_held
    (attempt,) = waiting.earlier_attempts
    assert (attempt.attempt, attempt.outcome, attempt.worker_id) == (1, AttemptOutcome.FAILED, "w1")
    assert (attempt.start_time, attempt.end_time, attempt.error) == (2.0, 3.0, "ValueError: x")
    again = claimed(waiting, worker="w2", now=6.0)
    assert (again.attempt, again.not_before, again.error) == (2, None, None)
    assert again.earlier_attempts == waiting.earlier_attempts


def test_each_attempt_keeps_the_wheels_that_it_ran_with() -> None:
    first, second = WheelInUse(name="a-1-py3-none-any.whl"), WheelInUse(name="a-2-py3-none-any.whl")
    running = PENDING.claim(worker_id="w1", worker_instance_id="i1", ack_subject=None, now=2.0, wheels=[first])
    waiting = running.hand_back(now=3.0, interrupted=True)
    assert (running.wheels, waiting.wheels) == ([first], [])
    again = waiting.claim(worker_id="w1", worker_instance_id="i1", ack_subject=None, now=4.0, wheels=[second])
    failed = again.finish(RunStatus.FAILED, now=5.0)
    assert failed.wheels == [second]
    assert [attempt.wheels for attempt in failed.reopen(now=6.0).earlier_attempts] == [[first], [second]]


def test_a_run_without_wheels_says_nothing_of_them() -> None:
    waiting = claimed(PENDING).hand_back(now=3.0, interrupted=True)
    assert len(waiting.earlier_attempts) == 1
    assert b"wheels" not in waiting.encode()


def test_only_an_ended_run_can_be_reopened_and_its_attempts_go_on_counting() -> None:
    running = claimed(PENDING)
    with pytest.raises(IllegalTransition, match="has not ended yet"):
        running.reopen(now=3.0)
    failed = running.finish(RunStatus.FAILED, now=3.0, error="ValueError: x", reason="execution_error")
    reopened = failed.reopen(now=4.0)
    assert (reopened.status, reopened.reopened, reopened.failures) == (RunStatus.PENDING, 1, 0)
    assert reopened.end_time is None
    assert [(a.attempt, a.outcome) for a in reopened.earlier_attempts] == [(1, AttemptOutcome.FAILED)]
    assert claimed(reopened).attempt == 2


def test_a_snapshot_remembers_the_latest_attempts_only() -> None:
    snapshot = PENDING
    for _ in range(25):
        snapshot = claimed(snapshot).hand_back(now=3.0, interrupted=True)
    assert [a.attempt for a in snapshot.earlier_attempts] == list(range(16, 26))


def test_a_reopened_run_forgets_the_cancel_that_ended_it() -> None:
    cancelled = claimed(PENDING).request_cancel(by="someone", now=3.0).finish(RunStatus.CANCELLED, now=4.0)
    reopened = cancelled.reopen(now=5.0)
    assert (reopened.status, reopened.cancel_requested_at) == (RunStatus.PENDING, None)


def test_a_lost_holders_run_waits_again_or_is_cancelled_if_that_was_asked_for() -> None:
    held = claimed(PENDING)
    again = held.take_back(now=3.0, reason="worker_lost")
    assert (again.status, again.worker_id, again.interruptions) == (RunStatus.PENDING, None, 1)
    ended = held.request_cancel(by="someone", now=2.5).take_back(now=3.0, reason="worker_lost")
    assert (ended.status, ended.reason, ended.end_time) == (RunStatus.CANCELLED, "worker_lost", 3.0)


def test_a_cancelled_run_is_ended_only_if_no_worker_holds_it() -> None:
    assert PENDING.end_cancelled(now=3.0) is PENDING
    assert PENDING.request_cancel(by=None, now=2.0).end_cancelled(now=3.0).status is RunStatus.CANCELLED
    held = claimed(PENDING).request_cancel(by=None, now=2.5)
    assert held.end_cancelled(now=3.0) is held


def test_a_snapshot_takes_over_the_requests_that_the_ledger_recorded_and_nothing_else() -> None:
    held = claimed(PENDING)
    assert held.with_requests_of(PENDING) is held
    asked = held.with_requests_of(PENDING.request_cancel(by="someone", now=2.5, reason="enough"))
    assert (asked.status, asked.worker_id) == (RunStatus.CANCELLING, "w1")
    assert (asked.cancel_requested_by, asked.cancel_requested_at, asked.cancel_reason) == ("someone", 2.5, "enough")
    failed = held.finish(RunStatus.FAILED, now=3.0)
    reopened = failed.reopen(now=4.0)
    assert failed.with_requests_of(reopened) is reopened
    # A cancel of the life before.
    assert reopened.with_requests_of(PENDING.request_cancel(by="someone", now=2.5)) is reopened


def test_what_was_accepted_is_laid_over_a_snapshot_that_says_otherwise() -> None:
    forged = claimed(PENDING).model_copy(update={"tenant_id": "another", "params": {"a": 1}, "flow_name": "other"})
    shown = forged.with_facts_of(PENDING)
    assert (shown.tenant_id, shown.params, shown.flow_name) == (None, {}, "hello")
    assert (shown.status, shown.attempt, shown.worker_id) == (RunStatus.RUNNING, 1, "w1")

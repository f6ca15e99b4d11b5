"""The rules that runs bring with them, kept by a real worker: retries, schedule, deadline."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet_contracts.retry import RetryPolicy
from fleet_contracts.snapshot import AttemptOutcome, RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_testkit.waiting import eventually

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]
SLOW_RETRY = RetryPolicy(max_attempts=3, base_seconds=60.0)
QUICK = RetryPolicy(max_attempts=3, base_seconds=0.2, jitter=0.0)


async def submit_with(desk: Desk, flow_name: str, params: dict[str, Any] | None = None, **rules: Any) -> str:
    job = desk.job(flow_name, **(params or {})).model_copy(update=rules)
    await desk.runs.create(job.run_id, RunSnapshot.pending(job, now=time.time()).encode())
    await desk.queue(job)
    return job.run_id


async def wait_for_retry(desk: Desk, run_id: str, failures: int) -> RunSnapshot:
    return await desk.wait_for(
        run_id, lambda run: run.failures == failures and not run.is_held, what=f"failure {failures}"
    )


async def test_a_failed_flow_waits_for_its_retry_and_leaves_no_dead_letter(
    desk: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1")
    run_id = await submit_with(desk, "broken", {"message": "it broke"}, retry=SLOW_RETRY)
    run = await wait_for_retry(desk, run_id, 1)
    assert (run.status, run.error, run.reason) == (RunStatus.PENDING, "ValueError: it broke", "execution_error")
    assert (run.worker_id, run.worker_instance_id, run.ack_subject) == (None, None, None)
    assert run.not_before is not None
    assert 48 - 1 <= run.not_before - run.updated_at <= 72 + 1
    assert run.tasks["raise_an_error"] is TaskStatus.FAILED
    [over] = run.earlier_attempts
    assert (over.attempt, over.outcome, over.worker_id) == (1, AttemptOutcome.FAILED, "w1")
    assert over.error == "ValueError: it broke"
    await desk.wait_queue_empty()
    assert await desk.dead_letters() == []
    [line] = [line for line in worker.log_lines if line["event"] == "worker_job" and line["status"] == "failed"]
    assert (line["run_id"], line["meta"]["failures"]) == (run_id, 1)
    assert (line["meta"]["exception_type"], line["meta"]["retryable"]) == ("ValueError", False)
    assert 47 <= line["meta"]["delay_seconds"] <= 73
    states = [event.status for batch in await desk.events(run_id) for event in batch.events if event.kind == "run"]
    assert states == ["RUNNING", "PENDING"]


async def test_a_flow_is_tried_as_often_as_its_policy_says(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1")
    run_id = await submit_with(desk, "broken", retry=QUICK)
    for failures in (1, 2):
        run = await wait_for_retry(desk, run_id, failures)
        assert run.status is RunStatus.PENDING
        # What the runs service does: a new job. It comes before its time and is waited for.
        await desk.queue(desk.job("broken", run_id=run_id))
    run = await desk.wait_ended(run_id)
    assert (run.status, run.failures, run.attempt) == (RunStatus.FAILED, 3, 3)
    assert [one.attempt for one in run.earlier_attempts] == [1, 2]
    starts = [one.start_time or 0.0 for one in run.earlier_attempts] + [run.start_time or 0.0]
    ends = [one.end_time for one in run.earlier_attempts]
    assert starts[1] - ends[0] >= 0.1
    assert starts[2] - ends[1] >= 0.3
    await desk.wait_queue_empty()
    [letter] = await desk.dead_letters()
    assert (letter.reason, letter.attempt) == ("execution_error", 3)


async def test_a_vanished_runner_does_not_use_up_the_retries(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker("w1")
    run_id = await submit_with(desk, "waiting", {"file": str(tmp_path / "go")}, retry=RetryPolicy(max_attempts=1))
    await desk.wait_running(run_id)
    [runner] = worker.runners()
    runner.kill()
    await desk.wait_for(run_id, lambda run: run.attempt == 2, what="another attempt")
    (tmp_path / "go").touch()
    run = await desk.wait_ended(run_id)
    assert (run.status, run.failures, run.interruptions) == (RunStatus.COMPLETED, 0, 1)
    assert [(one.attempt, one.outcome) for one in run.earlier_attempts] == [(1, AttemptOutcome.INTERRUPTED)]


async def test_an_unknown_flow_is_not_tried_again(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1")
    run = await desk.wait_ended(await submit_with(desk, "no-such-flow", retry=QUICK))
    assert (run.status, run.reason, run.failures) == (RunStatus.FAILED, "flow_not_found", 0)


async def test_a_flow_that_fails_after_its_cancel_reached_only_the_snapshot_is_cancelled(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    # No heartbeat and no notification: the worker sees the cancel only when it wants to write the retry.
    start_worker("w1", PYOCO_RUN_HEARTBEAT_INTERVAL_SEC="60", PYOCO_RUN_LOST_AFTER_SEC="90")
    run_id = await submit_with(desk, "breaking", {"file": str(tmp_path / "go")}, retry=QUICK)
    await desk.wait_running(run_id)
    await desk.change(run_id, lambda run: run.request_cancel(by="ada", now=5.0))
    (tmp_path / "go").touch()
    run = await desk.wait_ended(run_id)
    assert (run.status, run.reason, run.failures) == (RunStatus.CANCELLED, None, 0)
    await desk.wait_queue_empty()
    assert await desk.dead_letters() == []

    async def states() -> list[str | None]:
        events = [event for batch in await desk.events(run_id) for event in batch.events]
        return [event.status for event in events if event.kind == "run"]

    async def says_so() -> bool:
        return (await states())[-1] == "CANCELLED"

    await eventually(says_so, what="the event of the end")


async def test_a_run_is_not_begun_before_its_time(desk: Desk, start_worker: StartWorker) -> None:
    not_before = time.time() + 3.0
    run_id = await submit_with(desk, "tiny", not_before=not_before)
    start_worker("w1")
    run = await desk.wait_ended(run_id)
    assert (run.status, run.attempt, run.not_before) == (RunStatus.COMPLETED, 1, None)
    assert (run.start_time or 0.0) >= not_before - 0.05
    info = await desk.link.jetstream.consumer_info("PYOCO_WORK", desk.settings.work_durable("default"))
    assert info.delivered.consumer_seq <= 2
    await desk.wait_queue_empty()


async def test_a_run_whose_deadline_has_passed_is_not_begun(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1", PYOCO_DLQ_PUBLISH_EXECUTION_ERROR="false")
    run_id = await submit_with(desk, "tiny", deadline_at=time.time() - 1.0, retry=QUICK)
    run = await desk.wait_ended(run_id)
    assert (run.status, run.reason, run.attempt) == (RunStatus.FAILED, "deadline_exceeded", 0)
    assert (run.error or "").startswith("the run's deadline passed")
    assert (run.error or "").endswith("before a worker could begin it")
    await desk.wait_queue_empty()
    [letter] = await desk.dead_letters()
    assert (letter.reason, letter.error, letter.run_id) == ("deadline_exceeded", run.error, run_id)
    assert "deadline_exceeded" in [line.get("reason") for line in worker.log_lines]


async def test_a_run_is_ended_at_its_deadline_and_never_tried_again(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1")
    await desk.wait_ended(await desk.submit("tiny"))
    deadline_at = time.time() + 3.0
    run_id = await submit_with(desk, "stubborn", deadline_at=deadline_at, retry=QUICK)
    await desk.wait_running(run_id)
    [runner] = worker.runners()
    run = await desk.wait_ended(run_id)
    assert (run.status, run.reason, run.attempt) == (RunStatus.FAILED, "deadline_exceeded", 1)
    assert run.error == "the run's deadline passed while it was running; its process was ended"
    assert run.tasks == {"deaf": TaskStatus.RUNNING}
    assert 0 <= (run.end_time or 0.0) - deadline_at < 5
    assert not runner.is_running()
    await desk.wait_queue_empty()
    [letter] = await desk.dead_letters()
    assert (letter.reason, letter.attempt) == ("deadline_exceeded", 1)
    assert (await desk.wait_ended(await desk.submit("tiny"))).status is RunStatus.COMPLETED

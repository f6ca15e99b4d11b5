"""A run from its job to its end, executed by a real worker."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet_contracts.control import Control, ControlKind
from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.retry import RetryPolicy
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_testkit.permissions import open_to_others
from fleet_testkit.waiting import eventually
from fleet_worker.settings import WorkerSettings

from .conftest import CONSUMERS, Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]
LARGE_FLOWS = Path(__file__).parent / "large_flows"


async def test_a_run_completes_with_every_field_of_the_contract(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1")
    run_id = await desk.submit("tiny", name="Ada")
    run = await desk.wait_ended(run_id)
    assert (run.status, run.flow_name, run.params) == (RunStatus.COMPLETED, "tiny", {"name": "Ada"})
    assert run.tasks == {"first": TaskStatus.SUCCEEDED, "second": TaskStatus.SUCCEEDED}
    assert run.result == run.task_records["second"]["output"] == "hello Ada"
    assert run.task_records["second"]["inputs"] == {"first": "Ada"}
    assert run.task_records["first"].keys() >= {
        "state",
        "started_at",
        "ended_at",
        "duration_ms",
        "error",
        "artifacts",
    }
    assert not run.task_records_truncated
    assert (run.worker_id, run.tag, run.tags, run.attempt) == ("w1", "default", ["default"], 1)
    assert run.start_time is not None
    assert run.end_time is not None
    assert run.submitted_at is not None
    assert run.submitted_at <= run.start_time <= run.end_time <= run.updated_at == run.heartbeat_at
    assert (run.error, run.reason, run.cancel_requested_at, run.ack_subject) == (None, None, None, None)
    await desk.wait_queue_empty()
    assert await desk.dead_letters() == []
    assert worker.run_folders() in ([], [f".spare-{worker.runners()[0].pid}"])
    assert open_to_others(worker.scratch) == []


async def test_a_tiny_run_costs_two_writes_of_its_snapshot(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1")
    run_ids = [await desk.submit("tiny") for _ in range(10)]
    runs = [await desk.wait_ended(run_id) for run_id in run_ids]
    state = (await desk.link.jetstream.stream_info(f"KV_{desk.settings.runs_kv_bucket}")).state
    # One write of the server, one when claimed, one at the end; more only for a run that a busy machine made long.
    progress = sum(int(((run.end_time or 0.0) - (run.start_time or 0.0)) / 0.25) for run in runs)
    assert 30 <= state.last_seq <= 30 + progress


async def test_parallel_tasks_overlap_in_time(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1")
    run = await desk.wait_ended(await desk.submit("parallel"))
    (left_start, left_end), (right_start, right_end) = (
        run.task_records[name]["output"] for name in ("left", "right")
    )
    assert max(left_start, right_start) < min(left_end, right_end)
    assert run.result == {name: run.task_records[name]["output"] for name in ("left", "right")}


async def test_two_runs_at_once_keep_their_output_apart(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1", "--slots", "2")
    run_ids = {who: await desk.submit("talking", who=who) for who in ("ada", "bob")}
    ended = {who: await desk.wait_ended(run_id) for who, run_id in run_ids.items()}
    starts, ends = zip(*((run.start_time, run.end_time) for run in ended.values()), strict=True)
    assert max(filter(None, starts)) < min(filter(None, ends)), "the runs did not overlap"
    for who, run_id in run_ids.items():
        output = await desk.output(run_id)
        assert {event.task for event in output} == {"chatter"}
        said = "".join(event.text or "" for event in output if event.stream == "stdout")
        aside = "".join(event.text or "" for event in output if event.stream == "stderr")
        assert said == "".join(f"{who} {number}\n" for number in range(20))
        assert aside == "".join(f"{who} {number} aside\n" for number in range(20))


async def test_events_show_the_run_in_order_and_while_it_goes_on(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    start_worker("w1")
    run_id = await desk.submit("waiting", file=str(tmp_path / "go"))

    async def has_spoken() -> bool:
        return any(event.text == "waiting\n" for event in await desk.output(run_id))

    await eventually(has_spoken, what="output of a task that still runs")
    running = await desk.wait_running(run_id)
    assert running.task_records["wait_for_file"]["state"] == "RUNNING"
    (tmp_path / "go").touch()
    await desk.wait_ended(run_id)
    batches = await desk.events(run_id)
    assert [batch.batch for batch in batches] == list(range(len(batches)))
    assert {(batch.attempt, batch.worker_id) for batch in batches} == {(1, "w1")}
    seen = [(event.kind, event.task, event.status or event.text) for batch in batches for event in batch.events]
    assert seen == [
        ("run", None, "RUNNING"),
        ("task", "wait_for_file", "RUNNING"),
        ("log", "wait_for_file", "waiting\n"),
        ("task", "wait_for_file", "SUCCEEDED"),
        ("run", None, "COMPLETED"),
    ]


async def test_a_task_that_holds_the_interpreter_longer_than_ack_wait_is_delivered_once(
    desk: Desk, start_worker: StartWorker
) -> None:
    start_worker("w1")
    start_worker("w2")
    run = await desk.wait_ended(await desk.submit("greedy", seconds=5.0), within=30)
    assert (run.status, run.attempt) == (RunStatus.COMPLETED, 1)
    assert run.end_time is not None
    assert run.start_time is not None
    assert run.end_time - run.start_time > 2 * CONSUMERS.consumer_ack_wait_sec
    await desk.wait_queue_empty()
    info = await desk.link.jetstream.consumer_info("PYOCO_WORK", desk.settings.work_durable("default"))
    assert info.delivered.consumer_seq == 1


async def test_every_run_has_a_folder_of_its_own_that_is_gone_afterwards(
    desk: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1")
    run_id = await desk.submit("looking")
    run = await desk.wait_ended(run_id)
    folder = Path(run.task_records["look_around"]["output"])
    assert folder.parent == worker.scratch / "runs"
    assert folder.name == f"{run_id}-1"
    assert folder.name not in worker.run_folders()
    assert "".join(event.text or "" for event in await desk.output(run_id)) == "raw words\nstraße\n"


async def test_odd_results_are_recorded_as_well_as_json_can(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1")
    run = await desk.wait_ended(await desk.submit("odd"))
    assert run.status is RunStatus.COMPLETED
    output = run.task_records["return_odd_things"]["output"]
    assert output["lock"] == "<_thread.lock: it has no JSON form>"
    assert (output["('a', 1)"], output["large"], output["nan"]) == ([1, 2], str(2**80), None)
    assert output["rude"].endswith("Rude: it has no JSON form>")
    assert run.result == output
    opaque = await desk.wait_ended(await desk.submit("opaque"))
    assert opaque.result == "<_thread.lock: it has no JSON form>"


@pytest.mark.parametrize("max_snapshot_bytes", [WorkerSettings().max_run_snapshot_bytes, 50_000_000])
async def test_output_above_what_nats_takes_is_left_out_and_marked_and_the_run_is_not_executed_again(
    desk: Desk, start_worker: StartWorker, max_snapshot_bytes: int
) -> None:
    start_worker("w1", PYOCO_MAX_RUN_SNAPSHOT_BYTES=str(max_snapshot_bytes))
    run = await desk.wait_ended(await desk.submit("much"))
    assert (run.status, run.attempt, run.task_records_truncated) == (RunStatus.COMPLETED, 1, True)
    assert (run.result, run.result_truncated) == (None, True)
    assert (run.params_truncated, run.tasks_truncated) == (False, False)
    assert len(run.encode()) <= min(max_snapshot_bytes, desk.link.client.max_payload)
    assert run.tasks == {"return_much": TaskStatus.SUCCEEDED}
    await desk.wait_queue_empty()
    assert await desk.dead_letters() == []


async def test_a_flow_of_ten_thousand_tasks_ends_with_a_snapshot_within_its_limits(
    desk: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1", "--flows-dir", str(LARGE_FLOWS))
    run_id = await desk.submit("thousands")
    run = await desk.wait_ended(run_id, within=60)
    assert (run.status, run.attempt, run.result) == (RunStatus.COMPLETED, 1, 9_999)
    assert (len(run.tasks), set(run.tasks.values())) == (10_000, {TaskStatus.SUCCEEDED})
    assert (run.task_records, run.task_records_truncated) == ({}, True)
    assert len(run.encode()) <= WorkerSettings().max_run_snapshot_bytes
    await desk.wait_queue_empty()
    assert "ERR-PYOCO-0010" not in worker.log


async def test_params_that_do_not_fit_end_the_run_before_any_task_and_without_another_attempt(
    desk: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1", PYOCO_LOG_EXCEPTION_MESSAGES="0")
    job = desk.job("tiny", nam="Ada").model_copy(update={"retry": RetryPolicy(max_attempts=3, base_seconds=0)})
    await desk.runs.create(job.run_id, RunSnapshot.pending(job, now=time.time()).encode())
    await desk.queue(job)
    run = await desk.wait_ended(job.run_id)
    assert (run.status, run.attempt, run.tasks) == (RunStatus.FAILED, 1, {})
    assert run.error == "no task takes the param 'nam'; did you mean 'name'?"
    [letter] = await desk.dead_letters()
    assert letter.reason == DeadLetterReason.EXECUTION_ERROR
    # The log quotes nothing of what was submitted.
    assert "run failed: its params do not fit the flow" in worker.log
    assert "'nam'" not in worker.log


async def test_output_beyond_the_limit_is_not_kept(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1", PYOCO_RUN_LOG_MAX_BYTES="100")
    run_id = await desk.submit("talking", who="ada", lines=30)
    await desk.wait_ended(run_id)
    said = "".join(event.text or "" for event in await desk.output(run_id))
    assert said.endswith("[output beyond 100 bytes is not kept]\n")
    assert len(said) < 160


async def test_one_worker_serves_several_tags(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1", "--tags", "cpu,gpu")
    await eventually(lambda: desk.worker_record("w1"))
    for tag in ("gpu", "cpu"):
        run = await desk.wait_ended(await desk.submit("tiny", tag=tag))
        assert (run.status, run.tag) == (RunStatus.COMPLETED, tag)


async def test_a_cancel_request_ends_the_run_cooperatively(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1")
    run_id = await desk.submit("waiting")
    await desk.wait_running(run_id)
    await desk.change(run_id, lambda run: run.request_cancel(by="ada", now=5.0))
    run = await desk.wait_ended(run_id)
    assert (run.status, run.cancel_requested_by, run.cancel_requested_at) == (RunStatus.CANCELLED, "ada", 5.0)
    await desk.wait_queue_empty()


async def test_a_worker_that_is_notified_of_a_cancel_does_not_wait_for_its_heartbeat(
    desk: Desk, start_worker: StartWorker
) -> None:
    start_worker("w1", PYOCO_RUN_HEARTBEAT_INTERVAL_SEC="60", PYOCO_RUN_LOST_AFTER_SEC="90")
    run_id = await desk.submit("waiting")
    await desk.wait_running(run_id)
    await desk.change(run_id, lambda run: run.request_cancel(by="ada", now=5.0))
    await desk.link.send("pyoco.control.w1", b"not a control message")
    await desk.link.send("pyoco.control.w1", Control(kind=ControlKind.CANCEL, run_id="unknown").encode())
    await desk.link.send("pyoco.control.w1", Control(kind=ControlKind.CANCEL, run_id=run_id).encode())
    assert (await desk.wait_ended(run_id)).status is RunStatus.CANCELLED


async def test_a_run_that_ignores_its_cancel_is_ended_after_the_grace_period(
    desk: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1", PYOCO_CANCEL_GRACE_PERIOD_SEC="0.5")
    run_id = await desk.submit("stubborn")
    await desk.wait_running(run_id)
    await desk.change(run_id, lambda run: run.request_cancel(by="ada", now=5.0))
    run = await desk.wait_ended(run_id)
    assert run.status is RunStatus.CANCELLED
    assert "did not stop within 0.5 s" in (run.error or "")
    [line] = [line for line in worker.log_lines if line.get("err_id") == "ERR-PYOCO-0021"]
    assert (line["level"], line["status"], line["meta"]["error_code"]) == ("WARNING", "timeout", "INTERNAL_ERROR")
    assert (await desk.wait_ended(await desk.submit("tiny"))).status is RunStatus.COMPLETED


@pytest.mark.parametrize("held", [False, True])
async def test_a_run_whose_cancel_came_first_is_never_started(
    desk: Desk, start_worker: StartWorker, held: bool
) -> None:
    job = desk.job("tiny")
    run = RunSnapshot.pending(job, now=1.0)
    if held:
        run = run.claim(worker_id="gone", worker_instance_id="gone", ack_subject=None, now=1.0)
    await desk.runs.create(job.run_id, run.request_cancel(by="ada", now=2.0).encode())
    await desk.queue(job)
    start_worker("w1")
    ended = await desk.wait_ended(job.run_id)
    assert (ended.status, ended.tasks, ended.attempt) == (RunStatus.CANCELLED, {}, int(held))
    await desk.wait_queue_empty()

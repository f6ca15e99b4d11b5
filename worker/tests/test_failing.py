"""Jobs and runs that go wrong: what is recorded, what is answered, what is logged."""

import uuid
from collections.abc import Callable
from pathlib import Path

from nats.js import api

from fleet_contracts.names import DEAD_LETTER_ID, NATS_MSG_ID, dead_letter_id
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_testkit.waiting import eventually

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]


async def test_a_message_that_is_no_job_is_buried(desk: Desk, start_worker: StartWorker) -> None:
    await desk.link.publish("pyoco.work.default", b"{no json")
    named = desk.job("tiny")
    await desk.runs.create(named.run_id, RunSnapshot.pending(named, now=1.0).encode())
    await desk.link.publish("pyoco.work.default", b'{"run_id": "%s", "tag": "default"}' % named.run_id.encode())
    worker = start_worker("w1")
    failed = await desk.wait_ended(named.run_id)
    assert (failed.status, failed.reason) == (RunStatus.FAILED, "invalid_job")
    await desk.wait_queue_empty()
    letters = await desk.dead_letters()
    assert [(letter.reason, letter.run_id, letter.tag) for letter in letters] == [
        ("invalid_job", None, "default"),
        ("invalid_job", named.run_id, "default"),
    ]
    assert letters[1].error == "Job: flow_name: Field required"
    assert [line["err_id"] for line in worker.log_lines if line["level"] == "ERROR" and "err_id" in line] == [
        "ERR-PYOCO-0012",
        "ERR-PYOCO-0012",
    ]


async def test_an_invalid_job_cannot_end_a_run_that_somebody_executes(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    start_worker("w1", "--slots", "2")
    run_id = await desk.submit("waiting", file=str(tmp_path / "go"))
    await desk.wait_running(run_id)
    await desk.link.publish("pyoco.work.default", b'{"run_id": "%s"}' % run_id.encode())
    await eventually(desk.dead_letters, what="the dead letter")
    assert (await desk.snapshot(run_id)).status is RunStatus.RUNNING
    (tmp_path / "go").touch()
    assert (await desk.wait_ended(run_id)).status is RunStatus.COMPLETED
    await desk.wait_queue_empty()


async def test_an_unknown_flow_fails_and_names_the_known_ones(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1")
    run_id = str(uuid.uuid4())
    # Another worker cannot keep the letter out of the stream by using its id first.
    letter_id = dead_letter_id(run_id, reopened=0, attempt=1, reason="flow_not_found")
    headers = {NATS_MSG_ID: letter_id, DEAD_LETTER_ID: letter_id}
    await desk.link.publish("pyoco.dlq.cpu", b"forged", headers)
    await desk.link.jetstream.purge_stream("PYOCO_DLQ")
    await desk.submit("no-such-flow", run_id=run_id)
    run = await desk.wait_ended(run_id)
    assert (run.status, run.reason) == (RunStatus.FAILED, "flow_not_found")
    assert "'no-such-flow' is not known" in (run.error or "")
    assert "talking, tiny" in (run.error or "")
    await desk.wait_queue_empty()
    [letter] = await desk.dead_letters()
    assert (letter.reason, letter.run_id, letter.flow_name) == ("flow_not_found", run_id, "no-such-flow")
    assert (letter.worker_id, letter.num_delivered, letter.attempt) == ("w1", 1, 1)
    [line] = [line for line in worker.log_lines if line.get("err_id") == "ERR-PYOCO-0006"]
    assert (line["run_id"], line["service"], line["level"]) == (run_id, "pyoco-server:worker", "ERROR")
    assert line["meta"] == {"error_code": "NOT_FOUND", "resource": "flow:no-such-flow"}
    [ended] = [line for line in worker.log_lines if line["event"] == "worker_job" and line["status"] == "failed"]
    assert line["meta"].items() <= ended["meta"].items()


async def test_an_exception_is_recorded_and_logged_with_its_message_and_whole_traceback(
    desk: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1")
    message = f"it broke at nats://ada:hunter2@hub with pyoco_0123456789abcdef_{'x' * 40}"
    run_id = await desk.submit("broken", message=message)
    run = await desk.wait_ended(run_id)
    assert (run.status, run.reason, run.error) == (RunStatus.FAILED, "execution_error", f"ValueError: {message}")
    assert run.tasks == {"first": TaskStatus.SUCCEEDED, "raise_an_error": TaskStatus.FAILED}
    assert "raise ValueError(message)" in run.task_records["raise_an_error"]["traceback"]
    await desk.wait_queue_empty()
    [letter] = await desk.dead_letters()
    assert (letter.reason, letter.error) == ("execution_error", f"ValueError: {message}")
    [line] = [line for line in worker.log_lines if line.get("err_id") == "ERR-PYOCO-0007"]
    masked = "it broke at nats://ada:(withheld)@hub with pyoco_0123456789abcdef_(withheld)"
    assert (line["message"], line["exc_type"]) == ("run failed: the flow raised ValueError", "ValueError")
    assert line["exc_message"] == masked
    assert "raise ValueError(message)" in line["exc_traceback"]
    assert line["exc_traceback"].endswith(f"ValueError: {masked}\n")
    assert "tiny.py" in line["exc_origin"]
    assert line["exc_origin"].endswith("in raise_an_error")


async def test_the_exception_of_a_task_that_its_flow_goes_on_without_is_logged(
    desk: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1")
    run = await desk.wait_ended(await desk.submit("tolerant"))
    assert run.status is RunStatus.COMPLETED
    [line] = [line for line in worker.log_lines if "exc_type" in line and line.get("run_id") == run.run_id]
    assert (line["level"], line["run_id"], line["err_id"]) == ("WARNING", run.run_id, "ERR-PYOCO-0007")
    assert line["message"] == "task give_up failed: it raised ValueError"
    assert line["exc_message"] == "not needed"
    assert 'raise ValueError("not needed")' in line["exc_traceback"]


async def test_messages_of_exceptions_can_be_kept_out_of_the_log(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1", PYOCO_LOG_EXCEPTION_MESSAGES="0")
    run = await desk.wait_ended(await desk.submit("broken", message="it broke"))
    assert run.error == "ValueError: it broke"
    await desk.wait_queue_empty()
    [line] = [line for line in worker.log_lines if "exc_type" in line and line.get("run_id") == run.run_id]
    assert "raise ValueError(message)" in line["exc_traceback"]
    assert "it broke" not in worker.log


async def test_tracebacks_can_be_kept_out_of_the_log(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1", PYOCO_LOG_INCLUDE_TRACEBACK="0")
    run = await desk.wait_ended(await desk.submit("broken", message="it broke"))
    assert "raise ValueError(message)" in run.task_records["raise_an_error"]["traceback"]
    await desk.wait_queue_empty()
    [line] = [line for line in worker.log_lines if "exc_type" in line and line.get("run_id") == run.run_id]
    assert (line["exc_type"], line["exc_message"]) == ("ValueError", "it broke")
    assert "exc_traceback" not in line
    for of_a_traceback in ("raise ValueError(message)", "Traceback (most recent call last)", "exc_frames"):
        assert of_a_traceback not in worker.log


async def test_every_line_about_a_failed_flow_names_what_it_raised(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1")
    run_id = await desk.submit("broken", message="it broke")
    await desk.wait_ended(run_id)
    await desk.wait_queue_empty()
    about = [line for line in worker.log_lines if line.get("run_id") == run_id and line["status"] == "failed"]
    failed, ended = (line["meta"] for line in about)
    assert failed == {"error_code": "INTERNAL_ERROR", "exception_type": "ValueError", "retryable": False}
    assert failed.items() <= ended.items()


async def test_dead_letters_of_execution_errors_can_be_switched_off(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1", PYOCO_DLQ_PUBLISH_EXECUTION_ERROR="false")
    await desk.wait_ended(await desk.submit("broken"))
    await desk.wait_queue_empty()
    assert await desk.dead_letters() == []


async def test_a_task_that_leaves_python_fails_its_run_and_nothing_else(
    desk: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1")
    run = await desk.wait_ended(await desk.submit("leaving"))
    assert (run.status, run.error, run.attempt) == (RunStatus.FAILED, "SystemExit: 3", 1)
    [runner] = worker.runners()
    assert (await desk.wait_ended(await desk.submit("tiny"))).status is RunStatus.COMPLETED
    assert worker.runners() == [runner]


async def test_a_flow_that_needs_what_the_fleet_does_not_have_yet_fails_with_a_sentence(
    desk: Desk, start_worker: StartWorker
) -> None:
    start_worker("w1")
    keeps_no_artifacts = "NotSupported: ctx.save_artifact('report.txt', …) cannot be used: the fleet keeps no"
    for caught in (False, True):
        run = await desk.wait_ended(await desk.submit("saving", caught=caught))
        assert (run.status, run.reason) == (RunStatus.FAILED, "execution_error")
        assert (run.error or "").startswith(keeps_no_artifacts)


async def test_a_broken_flow_file_is_logged_and_hides_no_other(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1")
    await eventually(lambda: "broken_file.py cannot be used" in worker.log)
    [line] = [line for line in worker.log_lines if line["event"] == "flows_broken"]
    assert line["exc_message"] == "this file is broken on purpose"
    assert (await desk.wait_ended(await desk.submit("tiny"))).status is RunStatus.COMPLETED


async def test_a_job_without_a_snapshot_is_buried_after_a_while(desk: Desk, start_worker: StartWorker) -> None:
    job = desk.job("tiny")
    await desk.queue(job)
    start_worker("w1")
    await desk.wait_queue_empty()
    [letter] = await desk.dead_letters()
    assert (letter.reason, letter.run_id, letter.num_delivered) == ("run_not_found", job.run_id, 3)


async def test_a_snapshot_that_comes_a_moment_late_is_waited_for(desk: Desk, start_worker: StartWorker) -> None:
    worker = start_worker("w1")
    job = desk.job("tiny")
    await desk.queue(job)
    await eventually(lambda: worker.log)
    await desk.runs.create(job.run_id, RunSnapshot.pending(job, now=1.0).encode())
    assert (await desk.wait_ended(job.run_id)).status is RunStatus.COMPLETED


async def test_a_bucket_that_refuses_writes_delays_the_run(desk: Desk, start_worker: StartWorker) -> None:
    run_id = await desk.submit("tiny")
    await limit_message_size(desk, 10)
    worker = start_worker("w1")
    await eventually(lambda: "run could not be claimed" in worker.log, within=20)
    assert (await desk.snapshot(run_id)).status is RunStatus.PENDING
    await limit_message_size(desk, -1)
    run = await desk.wait_ended(run_id)
    assert (run.status, run.attempt) == (RunStatus.COMPLETED, 1)
    await desk.wait_queue_empty()


async def test_an_end_that_is_refused_is_tried_again_later(
    desk: Desk, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker("w1")
    run_id = await desk.submit("waiting", file=str(tmp_path / "go"))
    await desk.wait_running(run_id)
    await limit_message_size(desk, 10)
    (tmp_path / "go").touch()
    await eventually(lambda: "ERR-PYOCO-0008" in worker.log)
    await limit_message_size(desk, -1)
    run = await desk.wait_ended(run_id)
    assert run.status is RunStatus.COMPLETED
    await desk.wait_queue_empty()
    assert worker.log.count("ERR-PYOCO-0008") == 1


async def limit_message_size(desk: Desk, size: int) -> None:
    js = desk.link.jetstream
    config = (await js.stream_info(f"KV_{desk.settings.runs_kv_bucket}")).config
    await js.update_stream(api.StreamConfig(**{**vars(config), "max_msg_size": size}))


async def test_a_run_whose_worker_died_before_its_letter_was_out_gets_its_letter(
    desk: Desk, start_worker: StartWorker
) -> None:
    job = desk.job("tiny")
    held = RunSnapshot.pending(job, now=1.0).claim(
        worker_id="dead", worker_instance_id="dead-1", ack_subject=None, now=2.0
    )
    failed = held.finish(RunStatus.FAILED, now=3.0, error="ValueError: boom", reason="execution_error")
    await desk.runs.create(job.run_id, failed.encode())
    for _ in range(3):
        await desk.queue(job)
    start_worker("w1")
    await desk.wait_queue_empty()
    letters = await desk.dead_letters()
    # Every delivery sends it; the ledger keeps one of those that are about the same end.
    assert {(one.run_id, one.reason, one.error, one.worker_id, one.attempt) for one in letters} == {
        (job.run_id, "execution_error", "ValueError: boom", "dead", 1)
    }
    assert await desk.snapshot(job.run_id) == failed

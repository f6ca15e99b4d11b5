"""A workflow file on its way through agent and runner."""

from collections.abc import Callable

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]

FILE = """
flow:
  graph: {graph}
tasks:
  begin: {{callable: tiny:first}}
  finish: {{callable: flows.tiny:second, inputs: {{first: $node.begin.output}}}}
  sneak: {{callable: os:getcwd}}
  later: {{callable: tiny:fetch}}
"""


async def submit_file(desk: Desk, file: str, **params: str) -> str:
    job = desk.job("mine", **params).model_copy(update={"workflow_yaml": file})
    await desk.runs.create(job.run_id, RunSnapshot.pending(job, now=1.0).encode())
    await desk.queue(job)
    return job.run_id


async def test_a_workflow_file_is_executed_with_the_params_of_its_job(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1")
    run = await desk.wait_ended(await submit_file(desk, FILE.format(graph="begin >> finish"), name="Ada"))
    assert (run.status, run.error, run.flow_name) == (RunStatus.COMPLETED, None, "mine")
    assert run.tasks == {"begin": "SUCCEEDED", "finish": "SUCCEEDED"}
    assert run.task_records["finish"]["output"] == "hello Ada"
    await desk.wait_queue_empty()


async def test_an_async_function_of_a_workflow_file_is_awaited(desk: Desk, start_worker: StartWorker) -> None:
    start_worker("w1")
    run = await desk.wait_ended(await submit_file(desk, FILE.format(graph="later")))
    assert (run.status, run.result) == (RunStatus.COMPLETED, "fetched")


async def test_a_function_that_is_not_allowed_fails_the_run_and_says_how_to_allow_it(
    desk: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1")
    run = await desk.wait_ended(await submit_file(desk, FILE.format(graph="sneak")))
    assert (run.status, run.reason, run.tasks) == (RunStatus.FAILED, "callable_not_allowed", {})
    assert run.error == (
        "callable os:getcwd is not allowed; add its module to PYOCO_WORKFLOW_CALLABLE_ALLOW on the worker, "
        "e.g. PYOCO_WORKFLOW_CALLABLE_ALLOW=os"
    )
    await desk.wait_queue_empty()
    [letter] = await desk.dead_letters()
    assert (letter.reason, letter.error) == ("callable_not_allowed", run.error)
    assert [line["run_id"] for line in worker.log_lines if line.get("err_id") == "ERR-PYOCO-0006"] == [run.run_id]
    worker.stop()

    start_worker("w2", PYOCO_WORKFLOW_CALLABLE_ALLOW="os, posix")
    run = await desk.wait_ended(await submit_file(desk, FILE.format(graph="sneak")))
    assert (run.status, run.error) == (RunStatus.COMPLETED, None)


async def test_what_the_making_of_a_flow_raises_can_be_kept_out_of_the_log_but_for_its_type_and_place(
    desk: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1", PYOCO_LOG_EXCEPTION_MESSAGES="0")
    graph = FILE.format(graph="begin >> hunter2")
    fields = f"{FILE.format(graph='begin')}  hunter2: [1]\n"
    module = FILE.format(graph="begin").replace("tiny:first", "broken_file:first")
    logged = {}
    for file, said in ((graph, "hunter2"), (fields, "hunter2"), (module, "RuntimeError: this file is broken")):
        run = await desk.wait_ended(await submit_file(desk, file))
        assert (run.status, run.reason) == (RunStatus.FAILED, "flow_not_found")
        assert said in (run.error or "")
        [line] = [line for line in worker.log_lines if line.get("run_id") == run.run_id and "err_id" in line]
        logged[line["message"]] = line
    assert list(logged) == [
        "run failed: the workflow's graph cannot be used (GraphReferenceError)",
        "run failed: the workflow file cannot be used (ValidationError)",
        "run failed: module broken_file cannot be imported (RuntimeError)",
    ]
    assert "hunter2" not in worker.log
    assert line["exc_type"] == "RuntimeError"
    assert line["exc_origin"].endswith("broken_file.py:3 in <module>")
    assert line["exc_message"].startswith("(withheld by PYOCO_LOG_EXCEPTION_MESSAGES")
    assert line["meta"]["error_code"] == "NOT_FOUND"


async def test_a_file_that_no_server_checked_fails_its_run_and_nothing_else(
    desk: Desk, start_worker: StartWorker
) -> None:
    worker = start_worker("w1")
    for file in ("", "version: 1", "{" * 5000, "a: &a [*a]", FILE.format(graph="nope"), "\ud7ff\x07"):
        run = await desk.wait_ended(await submit_file(desk, file))
        assert (run.status, run.reason, run.attempt) == (RunStatus.FAILED, "flow_not_found", 1), file
        assert run.error
    [runner] = worker.runners()
    assert (await desk.wait_ended(await desk.submit("tiny"))).status is RunStatus.COMPLETED
    assert worker.runners() == [runner]

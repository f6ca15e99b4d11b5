"""What a worker tells of a run that is traced: spans of what is worth one, and ids in every line."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.trace_context import TraceContext
from fleet_testkit.log_lines import log_lines
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.otlp import Receiver
from fleet_testkit.waiting import eventually

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]

REQUEST = TraceContext("4af7651916cd43dd8448eb211c80319c", "a7ad6b7169203331")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


async def queue_traced(desk: Desk, flow_name: str) -> Job:
    job = desk.job(flow_name).model_copy(update={"traceparent": REQUEST.traceparent})
    await desk.runs.create(job.run_id, RunSnapshot.pending(job, now=1.0).encode())
    await desk.queue(job)
    return job


async def line_with(worker: WorkerProcess, words: str) -> dict[str, Any]:
    def look() -> list[dict[str, Any]]:
        return [line for line in log_lines(worker.log) if words in line["message"]]

    return (await eventually(look, within=20, what=f"a line with {words!r}"))[0]


async def test_whoever_tends_a_run_tells_of_it_in_its_trace_and_makes_no_spans_of_heartbeats(
    desk: Desk, start_worker: StartWorker, nats_server: NatsServer, receiver: Receiver
) -> None:
    worker = start_worker("w1", PYOCO_LOG_LEVEL="DEBUG", **receiver.env)
    job = await queue_traced(desk, "waiting")
    await desk.wait_running(job.run_id)
    told = [await line_with(worker, "still at it")]
    nats_server.kill()
    told.append(await line_with(worker, "the run's progress could not be written"))
    told.append(await line_with(worker, "the in_progress ack could not be sent"))
    nats_server.start()
    await eventually(lambda: desk.link.down_because is None)
    begun = await desk.runs.get(job.run_id)
    assert begun is not None

    async def has_moved() -> bool:
        entry = await desk.runs.get(job.run_id)
        return entry is not None and entry.revision >= begun.revision + 5

    await eventually(has_moved, what="five heartbeats")
    await desk.change(
        job.run_id, lambda run: run.claim(worker_id="w9", worker_instance_id="other", ack_subject=None, now=5.0)
    )
    told.append(await line_with(worker, "the runner is ended"))
    trace = receiver.wait_for("the end of the attempt", REQUEST.trace_id, lambda trace: trace.count("run.process"))
    process = trace.only("run.process", pyoco_outcome="fenced")
    assert {(line.get("trace_id"), line.get("span_id")) for line in told} == {(process.trace_id, process.span_id)}
    about = log_lines(worker.log, run_id=job.run_id)
    assert {line.get("trace_id") for line in about} == {REQUEST.trace_id}
    # The claim and its task's states, which may come in two steps.
    assert trace.count("run.snapshot.write") <= 3

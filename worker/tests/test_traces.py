"""The trace of a run in a worker: spans of what is worth one, and ids in every line."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.trace_context import TraceContext
from fleet_kit.nats.messages import last_message
from fleet_testkit.log_lines import log_lines
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.otlp import Receiver
from fleet_testkit.waiting import eventually

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]

REQUEST = TraceContext("4af7651916cd43dd8448eb211c80319c", "a7ad6b7169203331")
PRODUCER = TraceContext(REQUEST.trace_id, "b7ad6b7169203331")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


async def queue_traced(desk: Desk, flow_name: str) -> Job:
    job = desk.job(flow_name).model_copy(update={"traceparent": REQUEST.traceparent})
    await desk.runs.create(job.run_id, RunSnapshot.pending(job, now=1.0).encode())
    await desk.queue(job)
    return job


async def trace_of_last(desk: Desk, stream: str, subject: str) -> TraceContext | None:
    found = await last_message(desk.link, stream, subject)
    assert found is not None
    return TraceContext.of_headers(found.headers)


async def line_with(worker: WorkerProcess, words: str) -> dict[str, Any]:
    def look() -> list[dict[str, Any]]:
        return [line for line in log_lines(worker.log) if words in line["message"]]

    return (await eventually(look, within=20, what=f"a line with {words!r}"))[0]


@pytest.mark.own_nats
async def test_periodic_work_on_a_run_logs_in_its_trace_and_makes_no_spans_of_heartbeats(
    desk: Desk, start_worker: StartWorker, nats_server: NatsServer, receiver: Receiver
) -> None:
    worker = start_worker("w1", PYOCO_LOG_LEVEL="DEBUG", **receiver.env)
    job = await queue_traced(desk, "waiting")
    await desk.wait_running(job.run_id)
    lines = [await line_with(worker, "still at it")]
    nats_server.kill()
    lines.append(await line_with(worker, "the run's progress could not be written"))
    lines.append(await line_with(worker, "the in_progress ack could not be sent"))
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
    lines.append(await line_with(worker, "the runner is ended"))
    trace = receiver.wait_for("the end of the attempt", REQUEST.trace_id, lambda trace: trace.count("run.process"))
    process = trace.only("run.process", pyoco_outcome="fenced")
    assert {(line.get("trace_id"), line.get("span_id")) for line in lines} == {(process.trace_id, process.span_id)}
    about = log_lines(worker.log, run_id=job.run_id)
    assert {line.get("trace_id") for line in about} == {REQUEST.trace_id}
    # The claim and its task's states, which may come in two steps.
    assert trace.count("run.snapshot.write") <= 3


async def test_a_message_that_is_no_job_is_refused_in_the_trace_of_its_sender(
    desk: Desk, start_worker: StartWorker, receiver: Receiver
) -> None:
    job = desk.job("tiny")
    await desk.runs.create(job.run_id, RunSnapshot.pending(job, now=1.0).encode())
    no_job = b'{"run_id": "%s"}' % job.run_id.encode()
    await desk.link.publish("pyoco.work.default", no_job, PRODUCER.headers)
    worker = start_worker("w1", **receiver.env)
    await desk.wait_queue_empty()
    trace = receiver.wait_for("the refusal", REQUEST.trace_id, lambda trace: trace.count("run.process"))
    process = trace.only("run.process", pyoco_outcome="invalid_job", pyoco_run_id=job.run_id, pyoco_tag="default")
    assert (process.parent_id, process.kind, process.is_error) == (PRODUCER.span_id, "CONSUMER", True)
    [(linked, about)] = process.links
    assert linked == PRODUCER.span_id
    assert about["pyoco.queue.wait_ms"] >= 0
    write, letter = trace.only("run.snapshot.write", pyoco_run_status="FAILED"), trace.only("dead_letter.publish")
    assert trace.parent(write) == trace.parent(letter) == process
    # So both are ingested there, too.
    snapshot_trace = await trace_of_last(desk, "KV_pyoco_runs", f"$KV.pyoco_runs.{job.run_id}")
    letter_trace = await trace_of_last(desk, "PYOCO_DLQ", desk.settings.dlq_subject("default"))
    assert [one and one.span_id for one in (snapshot_trace, letter_trace)] == [write.span_id, letter.span_id]
    line = await line_with(worker, "an invalid job was received")
    assert (line["trace_id"], line["span_id"]) == (process.trace_id, process.span_id)


async def test_a_refusal_that_nobody_records_carries_the_trace_on(desk: Desk, start_worker: StartWorker) -> None:
    await desk.link.publish("pyoco.work.default", b"{no json", PRODUCER.headers)
    worker = start_worker("w1")
    await desk.wait_queue_empty()
    assert await trace_of_last(desk, "PYOCO_DLQ", desk.settings.dlq_subject("default")) == PRODUCER
    line = await line_with(worker, "an invalid job was received")
    assert (line["trace_id"], line["span_id"]) == (PRODUCER.trace_id, PRODUCER.span_id)

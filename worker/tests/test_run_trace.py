"""The spans that an agent makes of what a runner reports."""

import time
from collections.abc import Iterator

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from fleet_contracts.job import Job
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.trace_context import TraceContext
from fleet_kit.telemetry.tracing import current
from fleet_testkit.spans import RecordedSpans, ids_of, parent_id_of, recorded_spans
from fleet_worker.boundary.frames import Conclusion, Progress
from fleet_worker.job.delivery import Delivery
from fleet_worker.job.disposition import Ended, HandedBack
from fleet_worker.job.telemetry.run_trace import RunTrace, record_outcome, writing
from fleet_worker.pool.runner_process import RunnerDied

REQUEST = TraceContext("0af7651916cd43dd8448eb211c80319c", "a7ad6b7169203331")
PRODUCER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
JOB = Job(
    run_id="r1", flow_name="f", tag="default", submitted_at=1.0, tenant_id="acme", traceparent=REQUEST.traceparent
)


@pytest.fixture
def spans() -> Iterator[RecordedSpans]:
    with recorded_spans() as recorded:
        yield recorded


def delivery(trace: TraceContext | None, stored_at: float = 0.0, num_delivered: int = 1) -> Delivery:
    return Delivery("$JS.ACK.x", "pyoco.work.default", b"", 1, num_delivered, 0, stored_at, trace)


def claimed_by(run: RunSnapshot, worker_id: str, now: float) -> RunSnapshot:
    return run.claim(worker_id=worker_id, worker_instance_id=worker_id, ack_subject=None, now=now)


def seconds_waited(spans: RecordedSpans) -> list[float]:
    """The attributes of each link of the only run.process."""
    links = spans.named("run.process").links
    return [float(str((link.attributes or {})["pyoco.queue.wait_ms"])) / 1000 for link in links]


def event(task: str, status: str, at: float) -> dict[str, object]:
    return {"kind": "task", "task": task, "status": status, "at": at}


def test_a_delivery_goes_on_from_its_producer_and_records_how_long_it_waited(spans: RecordedSpans) -> None:
    with RunTrace(JOB, "w1").processing(delivery(PRODUCER, stored_at=time.time() - 3)) as traced:
        record_outcome(traced, Ended(RunStatus.COMPLETED), 2)
    process = spans.named("run.process")
    assert parent_id_of(process) == PRODUCER.span_id
    assert process.kind is SpanKind.CONSUMER
    [link] = process.links
    assert f"{link.context.span_id:016x}" == PRODUCER.span_id
    assert 3 <= seconds_waited(spans)[0] < 60
    assert process.attributes == {
        "pyoco.run.id": "r1",
        "pyoco.flow.name": "f",
        "pyoco.tag": "default",
        "pyoco.tenant.id": "acme",
        "pyoco.worker.id": "w1",
        "pyoco.attempt": 2,
        "pyoco.outcome": "ended",
        "pyoco.run.status": "COMPLETED",
        "pyoco.queue.deliveries": 1,
        "messaging.system": "nats",
        "messaging.destination.name": "pyoco.work.default",
        "messaging.operation.type": "process",
    }


def test_an_attempt_that_another_worker_made_is_no_time_in_the_queue(spans: RecordedSpans) -> None:
    now = time.time()
    run = claimed_by(RunSnapshot.pending(JOB, now=now - 300), "dead", now - 290)
    trace = RunTrace(JOB, "w1")
    with trace.processing(delivery(PRODUCER, stored_at=now - 300, num_delivered=2)), trace.claiming() as claiming:
        handed_back = run.hand_back(now=now - 3, interrupted=True)
        trace.claimed(claimed_by(handed_back, "w1", now), claiming)
    [waited] = seconds_waited(spans)
    assert 3 <= waited < 60


def test_a_job_that_comes_again_without_an_attempt_in_between_has_waited_all_the_time(spans: RecordedSpans) -> None:
    now = time.time()
    trace = RunTrace(JOB, "w1")
    with trace.processing(delivery(PRODUCER, stored_at=now - 300, num_delivered=2)), trace.claiming() as claiming:
        trace.claimed(claimed_by(RunSnapshot.pending(JOB, now=now - 300), "w1", now), claiming)
    [waited] = seconds_waited(spans)
    assert waited >= 300


def test_a_job_that_is_not_claimed_records_how_long_it_waited_the_first_time_only(spans: RecordedSpans) -> None:
    with RunTrace(JOB, "w1").processing(delivery(PRODUCER, stored_at=1.0, num_delivered=2)):
        pass
    assert seconds_waited(spans) == []


def test_a_job_whose_header_got_lost_goes_on_from_its_request(spans: RecordedSpans) -> None:
    with RunTrace(JOB, "w1").processing(delivery(None)) as traced:
        record_outcome(traced, HandedBack(0.0), None)
    process = spans.named("run.process")
    assert parent_id_of(process) == REQUEST.span_id
    assert process.attributes is not None
    assert process.attributes["pyoco.outcome"] == "handed_back"


def test_a_job_that_nobody_traces_begins_no_trace(spans: RecordedSpans) -> None:
    untraced = JOB.model_copy(update={"traceparent": None})
    trace = RunTrace(untraced, "w1")
    with trace.processing(delivery(None)), trace.claiming(), trace.executing():
        trace.tasks_reported(Progress([event("a", "RUNNING", 1.0), event("a", "SUCCEEDED", 2.0)]))
    assert spans.all == []


def test_each_execution_of_a_task_is_a_span_with_the_times_of_the_runner(spans: RecordedSpans) -> None:
    trace = RunTrace(JOB, "w1")
    with trace.processing(delivery(PRODUCER)), trace.executing():
        first = [event("a", "RUNNING", 1.0), {"kind": "log", "task": "a", "text": "secret", "at": 1.5}]
        trace.tasks_reported(Progress(first))
        trace.tasks_reported(Progress([event("a", "SUCCEEDED", 2.0), event("a", "RUNNING", 3.0)]))
        trace.executed(Conclusion(RunStatus.COMPLETED, events=[event("a", "SUCCEEDED", 4.5)]))
    tasks = [span for span in spans.all if span.name == "task a"]
    assert [(span.start_time, span.end_time) for span in tasks] == [(10**9, 2 * 10**9), (3 * 10**9, int(4.5e9))]
    execute = ids_of(spans.named("run.execute"))[1]
    assert {parent_id_of(span) for span in tasks} == {execute}
    assert "secret" not in "".join(str(span.to_json()) for span in spans.all)


def test_a_failed_task_records_what_it_raised_with_progress_or_with_the_end(
    spans: RecordedSpans,
) -> None:
    trace = RunTrace(JOB, "w1")
    with trace.processing(delivery(PRODUCER)), trace.executing():
        events = [event("a", "RUNNING", 1.0), event("a", "FAILED", 2.0), event("b", "RUNNING", 1.0)]
        trace.tasks_reported(Progress(events, {}, {"a": {"error": "KeyError: 'x'"}, "b": {}}))
        failure = {"exc_type": "ValueError"}
        trace.executed(
            Conclusion(
                RunStatus.FAILED,
                events=[event("b", "FAILED", 3.0)],
                task_errors={"b": "ValueError: no: never"},
                error="ValueError: no: never",
                failure=failure,
            )
        )
    for name, kind in (("task a", "KeyError"), ("task b", "ValueError"), ("run.execute", "ValueError")):
        span = spans.named(name)
        assert span.attributes is not None
        assert span.attributes["error.type"] == kind
        assert span.status.status_code is StatusCode.ERROR
    # What it says may be anything that the flow was given.
    assert "never" not in "".join(str(span.to_json()) for span in spans.all)


def test_tasks_of_a_runner_that_died_end_with_it(spans: RecordedSpans) -> None:
    trace = RunTrace(JOB, "w1")

    def die() -> None:
        with trace.processing(delivery(PRODUCER)), trace.executing():
            trace.tasks_reported(Progress([event("a", "RUNNING", time.time())]))
            raise RunnerDied(-9)

    with pytest.raises(RunnerDied):
        die()
    interrupted = spans.named("task a")
    assert interrupted.attributes is not None
    assert interrupted.attributes["error.type"] == "interrupted"
    assert spans.named("run.execute").status.status_code is StatusCode.ERROR


def test_progress_of_tasks_is_written_inside_the_trace_and_heartbeats_outside(spans: RecordedSpans) -> None:
    trace = RunTrace(JOB, "w1")
    with trace.processing(delivery(PRODUCER)), trace.executing() as executing:
        pass_through = executing.context
        with trace.writing_progress({"tasks": {}}):
            assert current() == pass_through
    with trace.writing_progress({"tasks": {}}):  # as the agent's periodic task, outside of everything
        assert current() is None
    with trace.writing_progress({}):
        assert current() is None


def test_without_a_recorder_the_context_is_carried_and_nothing_else_is_done() -> None:
    trace = RunTrace(JOB, "w1")
    with trace.processing(delivery(PRODUCER)):
        assert current() == PRODUCER
        with trace.claiming(), trace.executing():
            trace.tasks_reported(Progress([event("a", "RUNNING", 1.0)]))
            assert current() == PRODUCER
    assert current() is None


def test_a_write_outside_of_any_trace_is_no_span(spans: RecordedSpans) -> None:
    with writing(RunSnapshot.pending(JOB, now=1.0)):
        assert current() is None
    assert spans.all == []

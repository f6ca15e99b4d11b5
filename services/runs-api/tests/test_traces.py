"""What the runs service does for a run is recorded in one trace: that of the request that asked for it."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from fleet_contracts.job import Job
from fleet_contracts.names import WireNames
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.trace_context import TraceContext
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.messages import StoredMessage, last_message, stored_message
from fleet_kit.telemetry.tracing import current, span
from fleet_runs_api.dispatch.relay import Relay
from fleet_runs_api.ledger.rows import Kind, Known, OutboxRow, RunRow
from fleet_runs_api.resources import Resources
from fleet_testkit.spans import RecordedSpans, ids_of, parent_id_of, recorded_spans
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest

CLIENT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", tracestate="vendor=opaque")


@pytest.fixture
def spans() -> Iterator[RecordedSpans]:
    with recorded_spans() as recorded:
        yield recorded


TracesLogged = Callable[[str], set[str | None]]


@pytest.fixture
def traces_logged() -> Iterator[TracesLogged]:
    """The traces in which lines were logged that hold these words."""
    lines: list[tuple[str, str | None]] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append((record.getMessage(), trace.trace_id if (trace := current()) else None))

    room = logging.getLogger("fleet_runs_api")
    level, listener = room.level, Listener()
    room.addHandler(listener)
    room.setLevel(logging.INFO)
    yield lambda words: {trace_id for message, trace_id in lines if words in message}
    room.removeHandler(listener)
    room.setLevel(level)


async def job_at(service: RunsUnderTest, sequence: int) -> StoredMessage:
    async def look() -> StoredMessage | None:
        return await stored_message(service.link, "PYOCO_WORK", sequence)

    found = await eventually(look, what=f"job {sequence}")
    assert found is not None
    return found


async def stored_snapshot(service: RunsUnderTest, run_id: str) -> StoredMessage:
    found = await last_message(service.link, "KV_pyoco_runs", f"$KV.pyoco_runs.{run_id}")
    assert found is not None
    return found


async def test_a_submit_is_accepted_and_relayed_inside_its_request(
    service: RunsUnderTest, spans: RecordedSpans
) -> None:
    run_id = await service.submit(params={"password": "hunter2"})
    request, accept, relay = (spans.named(name) for name in ("POST /runs", "run.accept", "run.relay"))
    trace_id, request_id = ids_of(request)
    for child in (accept, relay):
        assert (ids_of(child)[0], parent_id_of(child)) == (trace_id, request_id)
        assert child.attributes is not None
        assert child.attributes["pyoco.run.id"] == run_id
        assert child.attributes["pyoco.tenant.id"] == "anonymous"
    assert relay.kind is SpanKind.PRODUCER
    job = await job_at(service, 1)
    assert TraceContext.of_headers(job.headers) == TraceContext(*ids_of(relay))
    assert Job.decode(job.data).trace_context == TraceContext(trace_id, request_id)
    snapshot = await stored_snapshot(service, run_id)
    assert TraceContext.of_headers(snapshot.headers) == TraceContext(*ids_of(relay))
    assert (await service.client.get(f"/runs/{run_id}")).json()["trace_id"] == trace_id
    assert "hunter2" not in "".join(str(one.to_json()) for one in spans.all)


async def test_a_clients_trace_reaches_job_and_snapshot_also_if_nobody_records_it(service: RunsUnderTest) -> None:
    answer = await service.client.post("/runs", json={"flow_name": "hello"}, headers=CLIENT.headers)
    run_id = answer.json()["run_id"]
    job = await job_at(service, 1)
    assert TraceContext.of_headers(job.headers) == CLIENT
    assert Job.decode(job.data).trace_context == CLIENT
    assert (await service.client.get(f"/runs/{run_id}")).json()["trace_id"] == CLIENT.trace_id


async def test_an_untraced_run_has_nothing_of_it(service: RunsUnderTest) -> None:
    run_id = await service.submit()
    job = await job_at(service, 1)
    assert b"trace" not in job.data
    assert TraceContext.of_headers(job.headers) is None
    assert "trace_id" not in (await service.client.get(f"/runs/{run_id}")).json()


async def test_each_run_of_a_batch_is_relayed_in_a_span_of_its_own(
    service: RunsUnderTest, spans: RecordedSpans
) -> None:
    answer = await service.client.post("/runs/batch", json={"runs": [{"flow_name": "hello"}] * 3})
    run_ids = {run["run_id"] for run in answer.json()["runs"]}
    await eventually(lambda: spans.names.count("run.relay") == 3, what="three relays")
    trace_id, request_id = ids_of(spans.named("POST /runs/batch"))
    accept = spans.named("run.accept")
    assert accept.attributes == {"pyoco.run.count": 3}
    relays = [one for one in spans.all if one.name == "run.relay"]
    assert {one.attributes["pyoco.run.id"] for one in relays if one.attributes} == run_ids
    assert {(ids_of(one)[0], parent_id_of(one)) for one in relays} == {(trace_id, request_id)}
    producers = [TraceContext.of_headers((await job_at(service, n)).headers) for n in (1, 2, 3)]
    assert {one.span_id for one in producers if one} == {ids_of(one)[1] for one in relays}


async def test_a_change_written_inside_a_trace_is_ingested_in_it_and_a_heartbeat_is_not(
    service: RunsUnderTest, spans: RecordedSpans
) -> None:
    run_id = await service.submit()
    await service.claim(run_id)  # outside of any span, as a heartbeat is
    await service.until_listed(run_id, status="RUNNING")
    assert "run.ingest" not in spans.names
    with span("worker", parent=TraceContext(*ids_of(spans.named("run.relay")))) as worker:
        await service.change(run_id, lambda snapshot: snapshot.finish(RunStatus.COMPLETED, now=2e9))
    await eventually(lambda: "run.ingest" in spans.names, what="the end being ingested")
    ingest = spans.named("run.ingest")
    assert worker.context is not None
    assert parent_id_of(ingest) == worker.context.span_id
    assert ingest.attributes is not None
    assert (ingest.attributes["pyoco.run.id"], ingest.attributes["pyoco.run.status"]) == (run_id, "COMPLETED")


def refuse_changes_of(service: RunsUnderTest, run_id: str) -> None:
    """From now on the ledger takes no change of this run."""
    refusal = f"BEFORE UPDATE ON runs WHEN NEW.run_id = '{run_id}' BEGIN SELECT RAISE(ABORT, 'by the test'); END"
    with service.database.writer.begin() as connection:
        connection.exec_driver_sql(f"CREATE TRIGGER refusal {refusal}")


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_a_change_that_the_ledger_cannot_take_is_logged_in_its_trace(
    service: RunsUnderTest, traces_logged: TracesLogged, is_recorded: bool
) -> None:
    run_id = await service.submit()
    with recorded_spans() if is_recorded else nullcontext() as spans:
        await eventually(lambda: service.rows("SELECT * FROM outbox") == [], what="the dispatch noted")
        refuse_changes_of(service, run_id)
        with span("worker", parent=CLIENT):
            await service.claim(run_id)
        await eventually(lambda: traces_logged("cannot be folded in"), what="the refusal")
        assert traces_logged("cannot be folded in") == {CLIENT.trace_id}
        if spans is not None:
            await eventually(lambda: "run.ingest" in spans.names, what="the span")
            ingest = spans.named("run.ingest")
            assert ingest.status.status_code is StatusCode.ERROR
            assert ingest.attributes is not None
            assert ingest.attributes["error.type"] == "IntegrityError"
            assert not ingest.status.description


async def test_a_snapshot_that_is_none_is_logged_in_the_trace_of_its_writer(
    service: RunsUnderTest, traces_logged: TracesLogged
) -> None:
    with span("worker", parent=CLIENT):
        await service.runs.create("r1", b"{no json")
    await eventually(lambda: traces_logged("a snapshot cannot be read"), what="the line")
    assert traces_logged("a snapshot cannot be read") == {CLIENT.trace_id}


async def test_a_repair_and_what_is_sent_again_are_in_the_same_trace(
    service: RunsUnderTest, spans: RecordedSpans, traces_logged: TracesLogged
) -> None:
    await service.submit()
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [])
    await service.link.jetstream.purge_stream("PYOCO_WORK")
    await eventually(lambda: spans.names.count("run.relay") == 2, within=30, what="the run being sent again")
    await eventually(lambda: "run.repair" in spans.names, what="the end of the repair")
    trace_id, request_id = ids_of(spans.named("POST /runs"))
    repair = spans.named("run.repair")
    assert (ids_of(repair)[0], parent_id_of(repair)) == (trace_id, request_id)
    assert repair.attributes is not None
    assert repair.attributes["pyoco.reason"] == "job_lost"
    assert traces_logged("JetStream had lost run") == {trace_id}
    again = [one for one in spans.all if one.name == "run.relay"][-1]
    assert (ids_of(again)[0], parent_id_of(again)) == (trace_id, request_id)
    assert again.attributes is not None
    assert again.attributes["pyoco.dispatch"] == 2


async def test_a_vanished_worker_is_logged_in_the_trace_of_its_run(
    service: RunsUnderTest, spans: RecordedSpans, traces_logged: TracesLogged
) -> None:
    run_id = await service.submit()
    await service.claim(run_id, worker_id="gone")
    await eventually(lambda: {"run.ingest", "run.repair"} <= set(spans.names), within=30, what="the hand-over")
    repair, ingest = spans.named("run.repair"), spans.named("run.ingest")
    assert ids_of(repair)[0] == ids_of(spans.named("POST /runs"))[0]
    assert repair.attributes is not None
    assert (repair.attributes["pyoco.reason"], repair.attributes["pyoco.worker.id"]) == ("worker_lost", "gone")
    assert parent_id_of(ingest) == ids_of(repair)[1]
    assert traces_logged("of vanished worker gone") == {ids_of(repair)[0]}


async def test_what_the_sweeper_finds_is_logged_in_the_trace_of_its_run(
    service: RunsUnderTest, traces_logged: TracesLogged
) -> None:
    async def submit_traced() -> str:
        answer = await service.client.post("/runs", json={"flow_name": "hello"}, headers=CLIENT.headers)
        return str(answer.json()["run_id"])

    unreadable, unrepairable = await submit_traced(), await submit_traced()
    await eventually(lambda: service.rows("SELECT * FROM outbox") == [], what="the dispatches noted")
    refuse_changes_of(service, unrepairable)
    entry = await service.runs.get(unreadable)
    assert entry is not None
    await service.runs.update(unreadable, b"{no json", revision=entry.revision)
    await service.link.jetstream.purge_stream("PYOCO_WORK")
    for words in (f"run {unreadable} is made anew", f"run {unrepairable} could not be repaired"):
        await eventually(lambda words=words: traces_logged(words), within=30, what=words)
        assert traces_logged(words) == {CLIENT.trace_id}


async def test_a_rerun_belongs_to_the_trace_of_its_own_request(service: RunsUnderTest, spans: RecordedSpans) -> None:
    first = await service.submit()
    answer = await service.client.post(f"/runs/{first}/rerun")
    snapshot: RunSnapshot = await service.snapshot(answer.json()["run_id"])
    assert snapshot.trace_id == ids_of(spans.named("POST /runs/{run_id}/rerun"))[0]
    assert snapshot.trace_id != (await service.snapshot(first)).trace_id


async def test_a_dead_letter_is_logged_in_the_trace_of_its_run(
    service: RunsUnderTest, spans: RecordedSpans, traces_logged: TracesLogged
) -> None:
    await service.submit(timeout_sec=0.2)
    await eventually(lambda: {"dead_letter.ingest", "run.repair"} <= set(spans.names), within=30, what="the letter")
    published, ingested = spans.named("dead_letter.publish"), spans.named("dead_letter.ingest")
    assert parent_id_of(ingested) == ids_of(published)[1]
    assert parent_id_of(published) == ids_of(spans.named("run.repair"))[1]
    assert ids_of(published)[0] == ids_of(spans.named("POST /runs"))[0]
    assert ingested.attributes is not None
    assert ingested.attributes["pyoco.reason"] == "deadline_exceeded"
    assert traces_logged("(deadline_exceeded) entered") == {ids_of(published)[0]}


async def test_what_the_sweeper_does_carries_a_clients_trace_on_also_if_nobody_records_it(
    service: RunsUnderTest, traces_logged: TracesLogged
) -> None:
    wanted = {"flow_name": "hello", "timeout_sec": 0.2}
    run_id = (await service.client.post("/runs", json=wanted, headers=CLIENT.headers)).json()["run_id"]

    async def letter() -> StoredMessage | None:
        return await last_message(service.link, "PYOCO_DLQ", "pyoco.dlq.default")

    buried = await eventually(letter, within=30, what="the dead letter")
    assert buried is not None
    assert TraceContext.of_headers(buried.headers) == CLIENT
    assert TraceContext.of_headers((await stored_snapshot(service, run_id)).headers) == CLIENT
    assert traces_logged(f"run {run_id} was ended") == {CLIENT.trace_id}
    await eventually(lambda: traces_logged("(deadline_exceeded) entered"), what="the letter in the ledger")
    assert traces_logged("(deadline_exceeded) entered") == {CLIENT.trace_id}


TRACED_JOB = Job(run_id="r1", flow_name="hello", tag="default", submitted_at=2e9, traceparent=CLIENT.traceparent)


def relay_of_nothing(**parts: Any) -> Relay:
    absent: Any = SimpleNamespace()
    metrics = SimpleNamespace(relay_failures=SimpleNamespace(inc=lambda: None))
    given = dict.fromkeys(("link", "runs", "database", "commits", "settings"), absent) | {"metrics": metrics}
    return Relay(Resources(**given | parts))


def outbox_row(job: str | None) -> OutboxRow:
    known = Known(RunStatus.PENDING, attempt=0, revision=0)
    run = job and RunRow(
        "r1", Kind("anonymous", "hello", "default"), known, None, None, None, 2e9, 1, None, job, snapshot=None
    )
    return OutboxRow("dispatch", "r1", 1, run or None)


# A withdrawn run has no job any more.
@pytest.mark.parametrize(("job", "trace_id"), [(TRACED_JOB.encode().decode(), CLIENT.trace_id), (None, None)])
def test_what_could_not_be_sent_is_logged_in_the_trace_of_its_run(
    job: str | None, trace_id: str | None, traces_logged: TracesLogged
) -> None:
    relay_of_nothing()._log_failure(outbox_row(job), NatsUnavailable())
    assert traces_logged("could not send run r1") == {trace_id}


async def test_a_dispatch_that_could_not_even_be_begun_is_recorded_as_a_failed_relay(spans: RecordedSpans) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise NatsUnavailable

    runs = SimpleNamespace(create_nowait=refuse)
    commits = SimpleNamespace(write_soon=lambda *_, **__: asyncio.get_running_loop().create_future())
    relay = relay_of_nothing(runs=runs, commits=commits, settings=WireNames())
    await relay._send_fresh([outbox_row(TRACED_JOB.encode().decode())])
    sent = spans.named("run.relay")
    assert parent_id_of(sent) == CLIENT.span_id
    assert sent.status.status_code is StatusCode.ERROR
    assert sent.attributes is not None
    assert sent.attributes["error.type"] == "NatsUnavailable"

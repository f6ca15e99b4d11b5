"""One trace from the request to the last write of its run, through every process, also over retries and a crash."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet_contracts.spans import ERROR_TYPE
from fleet_contracts.status import RunStatus
from fleet_contracts.trace_context import TraceContext
from fleet_testkit.otlp import ReceivedSpan, Receiver, Trace
from fleet_testkit.runs import read, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.worker_process import WorkerProcess

RUNS_API, WORKER = "pyoco-fleet-runs-api", "pyoco-fleet-worker"
CLIENT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", tracestate="vendor=opaque")
UNSAMPLED = TraceContext("1bf7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", is_sampled=False)
RETRY = {"max_attempts": 3, "base_seconds": 0.1, "cap_seconds": 0.2}
WORKFLOW = "flow: {graph: it}\ntasks: {it: {callable: 'hello:choose'}}\n"
SECRET = "correct horse battery staple"


@dataclass
class Scene:
    stack: Stack
    receiver: Receiver
    flows_dir: Path
    folder: Path

    def submit(self, flow: str, *, headers: dict[str, str] | None = None, **more: Any) -> str:
        answer = self.stack.client.post("/runs", json={"flow_name": flow, **more}, headers=headers)
        answer.raise_for_status()
        run_id: str = answer.json()["run_id"]
        return run_id

    def trace_id(self, run_id: str) -> str:
        trace_id: str = read(self.stack.client, run_id)["trace_id"]
        return trace_id

    def whole_trace(self, run_id: str, status: RunStatus = RunStatus.COMPLETED) -> Trace:
        """The trace of a run, once its end is ingested and its last worker has exported all of it."""

        def is_whole(trace: Trace) -> bool:
            return bool(
                trace.count("run.ingest", pyoco_run_status=status.value)
                and trace.count("run.process", pyoco_run_status=status.value)
            )

        [ended] = wait_ended(self.stack.client, [run_id], within=60)
        assert ended["status"] == status, ended
        return self.receiver.wait_for("the whole trace", ended["trace_id"], is_whole, within=60)

    def worker(self, name: str) -> WorkerProcess:
        return WorkerProcess(
            self.stack.nats_url, self.folder, name, tag="own", flows_dir=self.flows_dir, **self.receiver.env
        )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, flows_dir: Path) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("traced")
    with Receiver() as receiver, Stack(folder / "data", env=receiver.env) as stack:
        yield Scene(stack, receiver, flows_dir, folder)


@pytest.fixture(scope="module")
def completed(scene: Scene) -> Trace:
    return scene.whole_trace(scene.submit("dag", params={"seconds": 0.1}))


@pytest.fixture(scope="module")
def batch(scene: Scene) -> Trace:
    answer = scene.stack.client.post("/runs/batch", json={"runs": [{"flow_name": "hello"}] * 3})
    run_ids = [run["run_id"] for run in answer.json()["runs"]]
    wait_ended(scene.stack.client, run_ids)
    return scene.receiver.wait_for(
        "three runs",
        scene.trace_id(run_ids[0]),
        lambda trace: trace.count("run.process") == trace.count("run.ingest", pyoco_run_status="COMPLETED") == 3,
    )


@pytest.fixture(scope="module")
def failed(scene: Scene) -> Trace:
    run_id = scene.submit("failing", params={"message": SECRET})
    scene.whole_trace(run_id, RunStatus.FAILED)
    return scene.receiver.wait_for(
        "the dead letter", scene.trace_id(run_id), lambda trace: trace.count("dead_letter.ingest")
    )


@pytest.fixture(scope="module")
def retried(scene: Scene) -> Trace:
    marks = scene.folder / "retried"
    params = {"marks": str(marks), "script": ["fail", "fine"]}
    with scene.worker("patient"):
        return scene.whole_trace(scene.submit("scripted", tag="own", params=params, retry=RETRY))


@pytest.fixture(scope="module")
def crashed(scene: Scene) -> Trace:
    marks = scene.folder / "crashed"
    with scene.worker("victim") as victim:
        run_id = scene.submit("scripted", tag="own", params={"marks": str(marks), "script": ["hang", "fine"]})
        wait_until(marks.exists, within=30, what="the first attempt")
        # Only the spans that it has exported by then are left of it.
        claimed = ("run.claim", "run.ingest")
        scene.receiver.wait_for(
            "the claim", scene.trace_id(run_id), lambda trace: all(trace.count(name) for name in claimed), within=60
        )
        victim.kill()
    with scene.worker("heir"):
        return scene.whole_trace(run_id)


def test_the_whole_way_of_a_run_is_one_tree(completed: Trace) -> None:
    trace = completed
    assert trace.orphans() == []
    [request] = [span for span in trace.spans if not span.parent_id]
    assert (request.name, request.kind, request.service) == ("POST /runs", "SERVER", RUNS_API)
    assert trace.way_to(trace.only("run.accept")) == ["POST /runs", "run.accept"]
    relay, process = trace.only("run.relay"), trace.only("run.process")
    assert trace.way_to(process) == ["POST /runs", "run.relay", "run.process"]
    assert (relay.kind, relay.service) == ("PRODUCER", RUNS_API)
    assert (process.kind, process.service) == ("CONSUMER", WORKER)
    assert trace.parent(trace.only("run.claim")) == process
    assert trace.parent(execute := trace.only("run.execute")) == process
    tasks = [span for span in trace.spans if span.name.startswith("task ")]
    assert {span.attributes["pyoco.task.name"] for span in tasks} == {
        *("prepare", "measure_east", "measure_north", "measure_west", "compare"),
    }
    assert all(trace.parent(span) == execute for span in tasks)
    # On a slow machine the states of tasks are written in between, as often as there is time for it.
    claimed, *progress = trace.named("run.snapshot.write", pyoco_run_status="RUNNING", pyoco_attempt=1)
    assert trace.way_to(claimed)[-2:] == ["run.claim", "run.snapshot.write"]
    assert all(trace.parent(span) == execute for span in progress)
    last = trace.only("run.snapshot.write", pyoco_run_status="COMPLETED")
    assert trace.parent(last) == process
    assert trace.parent(trace.only("run.ingest", pyoco_run_status="COMPLETED")) == last
    assert trace.only("run.ingest", pyoco_run_status="COMPLETED").service == RUNS_API


def test_the_queue_is_a_link_with_the_time_that_the_job_waited(completed: Trace) -> None:
    [(linked, about)] = completed.only("run.process").links
    assert linked == completed.only("run.relay").span_id
    assert 0 <= about["pyoco.queue.wait_ms"] < 30_000


def test_every_span_of_an_attempt_names_its_run(scene: Scene, completed: Trace) -> None:
    run_id = completed.only("run.accept").attributes["pyoco.run.id"]
    held_by = read(scene.stack.client, run_id)["worker_id"]
    about = {"pyoco.run.id": run_id, "pyoco.flow.name": "dag", "pyoco.tenant.id": "anonymous", "pyoco.tag": "default"}
    for span in completed.spans:
        if span.service == WORKER:
            expected = about | {"pyoco.worker.id": held_by, "pyoco.attempt": 1}
            assert expected.items() <= span.attributes.items(), span
        elif span.name.startswith("run."):
            assert about.items() <= span.attributes.items(), span


def test_tasks_have_the_times_that_the_runner_saw(completed: Trace) -> None:
    execute = completed.only("run.execute")
    first, *measured, last = (
        completed.only(f"task {name}")
        for name in ("prepare", "measure_east", "measure_north", "measure_west", "compare")
    )
    assert all(first.ended_at <= span.begun_at and span.ended_at <= last.begun_at for span in measured)
    # They sleep for 0.1 s each, all at once.
    assert all(span.ended_at - span.begun_at >= 0.09 for span in measured)
    assert max(span.begun_at for span in measured) < min(span.ended_at for span in measured)
    # Two processes of one machine: their clock is the same but for its grain.
    assert execute.begun_at - 0.05 <= first.begun_at
    assert last.ended_at <= execute.ended_at + 0.05


def test_log_lines_and_the_run_itself_carry_the_trace(scene: Scene, completed: Trace) -> None:
    process = completed.only("run.process")
    trace_id, run_id = process.trace_id, process.attributes["pyoco.run.id"]
    assert scene.trace_id(run_id) == trace_id
    lines = [json.loads(line) for line in scene.stack.log("worker-1").splitlines() if line.startswith("{")]
    [ended] = [line for line in lines if line["message"].startswith("run ended") and line.get("run_id") == run_id]
    assert (ended["trace_id"], ended["span_id"]) == (trace_id, process.span_id)
    unrelated = [line for line in lines if line["message"].startswith("connected to NATS")]
    assert unrelated
    assert not any("trace_id" in line for line in unrelated)


def test_a_clients_trace_goes_all_the_way(scene: Scene) -> None:
    run_id = scene.submit("hello", headers=CLIENT.headers)
    trace = scene.whole_trace(run_id)
    assert {span.trace_id for span in trace.spans} == {scene.trace_id(run_id)} == {CLIENT.trace_id}
    # Its parent is the client's own span, which we do not export.
    assert [(span.name, span.parent_id) for span in trace.orphans()] == [("POST /runs", CLIENT.span_id)]


def test_a_trace_that_the_client_does_not_want_sampled_is_carried_and_not_exported(scene: Scene) -> None:
    run_id = scene.submit("hello", headers=UNSAMPLED.headers)
    [ended] = wait_ended(scene.stack.client, [run_id])
    assert ended["trace_id"] == UNSAMPLED.trace_id
    # Everything of a later run has been exported: then nothing of this one is still on its way.
    scene.whole_trace(scene.submit("hello"))
    assert scene.receiver.trace(UNSAMPLED.trace_id).spans == []


def test_a_failing_flow_records_what_went_wrong_and_where(failed: Trace) -> None:
    task = failed.only("task explode")
    assert task.is_error
    assert task.attributes["error.type"] == failed.only("run.execute").attributes["error.type"]
    assert task.attributes["error.type"] == "ValueError"
    assert failed.only("run.execute").is_error
    assert failed.only("run.process").is_error
    assert failed.only("run.process").attributes["error.type"] == "execution_error"
    letter = failed.only("dead_letter.ingest")
    assert failed.way_to(letter) == [
        *("POST /runs", "run.relay", "run.process", "dead_letter.publish", "dead_letter.ingest"),
    ]
    assert letter.attributes["pyoco.reason"] == "execution_error"


def test_what_a_run_was_given_is_in_no_span_although_it_raised_it(scene: Scene, failed: Trace) -> None:
    assert failed.spans
    assert SECRET not in str([(span.name, span.attributes, span.error) for span in scene.receiver.spans])


def test_a_retry_goes_on_in_the_same_trace(retried: Trace) -> None:
    trace = retried
    assert trace.orphans() == []
    assert [span.attributes["pyoco.dispatch"] for span in trace.named("run.relay")] == [1, 2]
    first, second = trace.named("run.process")
    assert [span.attributes["pyoco.attempt"] for span in (first, second)] == [1, 2]
    assert [span.attributes["pyoco.outcome"] for span in (first, second)] == ["retry_scheduled", "ended"]
    assert [trace.parent(span) for span in (first, second)] == trace.named("run.relay")
    task_1, task_2 = trace.named("task follow_script")
    assert (task_1.is_error, task_1.attributes["error.type"]) == (True, "ValueError")
    assert (task_2.is_error, task_2.attributes["pyoco.attempt"]) == (False, 2)


def test_a_takeover_from_a_killed_worker_goes_on_in_the_same_trace(crashed: Trace) -> None:
    trace = crashed
    relay = trace.only("run.relay")
    [process] = trace.named("run.process")
    assert (process.attributes["pyoco.worker.id"], process.attributes["pyoco.attempt"]) == ("heir", 2)
    assert process.attributes["pyoco.queue.deliveries"] >= 2
    assert trace.parent(process) == relay
    [(linked, about)] = process.links
    assert linked == relay.span_id
    # From the hand-back on: that the victim had the run, and was waited for in vain for 4 s, is no time in the queue.
    first, second = trace.named("run.claim")
    assert 0 <= about["pyoco.queue.wait_ms"] / 1000 < second.ended_at - first.ended_at - 3
    assert trace.way_to(trace.only("task follow_script")) == [
        *("POST /runs", "run.relay", "run.process", "run.execute", "task follow_script"),
    ]
    repair = trace.only("run.repair", pyoco_reason="worker_lost")
    assert (repair.attributes["pyoco.worker.id"], trace.way_to(repair)) == ("victim", ["POST /runs", "run.repair"])
    # Of the dead worker there is what it had exported: the spans around it never ended.
    left = trace.orphans()
    assert {(span.attributes["pyoco.worker.id"], span.attributes["pyoco.attempt"]) for span in left} == {
        ("victim", 1)
    }
    assert "run.claim" in {span.name for span in left}


def test_runs_of_a_batch_share_the_trace_of_their_request(batch: Trace) -> None:
    assert batch.orphans() == []
    assert batch.only("run.accept").attributes["pyoco.run.count"] == 3
    run_ids = {span.attributes["pyoco.run.id"] for span in batch.named("run.process")}
    assert len(run_ids) == 3
    for run_id in run_ids:
        process = batch.only("run.process", pyoco_run_id=run_id)
        assert batch.parent(process) == batch.only("run.relay", pyoco_run_id=run_id)


def test_a_workflow_file_is_traced_like_any_flow(scene: Scene) -> None:
    answer = scene.stack.client.post(
        "/runs/yaml", files={"workflow": ("flow.yaml", WORKFLOW)}, data={"flow_name": "from-a-file"}
    )
    assert answer.status_code == 200, answer.text
    trace = scene.whole_trace(answer.json()["run_id"])
    assert trace.orphans() == []
    assert trace.way_to(trace.only("task it"))[0] == "POST /runs/yaml"
    assert WORKFLOW not in str(trace)


def test_reads_are_traced_and_probes_are_not(scene: Scene, completed: Trace) -> None:
    run_id = completed.only("run.accept").attributes["pyoco.run.id"]
    headers = TraceContext("2bf7651916cd43dd8448eb211c80319c", CLIENT.span_id).headers
    scene.stack.client.get(f"/runs/{run_id}", headers=headers)
    scene.stack.client.get("/workers", headers=headers)
    for path in ("/health", "/metrics"):
        scene.stack.client.get(path, headers=headers)
    trace = scene.receiver.wait_for(
        "both reads", "2bf7651916cd43dd8448eb211c80319c", lambda trace: len(trace.spans) >= 2
    )
    assert {(span.name, span.service) for span in trace.spans} == {
        ("GET /runs/{run_id}", RUNS_API),
        ("GET /workers", "pyoco-fleet-workers-api"),
    }
    assert not any("/verify" in span.name for span in scene.receiver.spans)


def test_every_span_and_attribute_is_in_the_schema_and_the_other_way_round(
    scene: Scene, completed: Trace, batch: Trace, failed: Trace, retried: Trace, crashed: Trace
) -> None:
    assert all(trace.spans for trace in (completed, batch, failed, retried, crashed))
    schema = yaml.safe_load((Path(__file__).parents[2] / "observability" / "schema.yaml").read_text())
    described = {span["name"]: set(span["attributes"]) for span in schema["spans"]}
    seen: dict[str, set[str]] = {}
    for span in scene.receiver.spans:
        attributes = set(span.attributes) | {name for _, about in span.links for name in about}
        # On a busy machine something else fails each time.
        seen.setdefault(_template(span), set()).update(attributes - {ERROR_TYPE})
    assert seen == described
    assert {ERROR_TYPE}.union(*described.values()) == set(schema["attributes"])
    resource = {name for span in scene.receiver.spans for name in span.resource}
    assert set(schema["resource"]) <= resource


def _template(span: ReceivedSpan) -> str:
    if span.name.startswith("task "):
        assert span.name == f"task {span.attributes['pyoco.task.name']}"
        return "task {pyoco.task.name}"
    if (route := span.attributes.get("http.route")) is not None:
        assert span.name == f"{span.attributes['http.request.method']} {route}"
        return "{http.request.method} {http.route}"
    return span.name

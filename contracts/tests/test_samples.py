"""The golden samples: what we write, what we must be able to read, and what a peer may send."""

import json
from pathlib import Path
from typing import Any

import pytest

from fleet_contracts.catalogue import (
    BrokenSource,
    Catalogue,
    FlowDefaults,
    FlowGraph,
    FlowOffer,
    FlowSource,
    GraphEdge,
    GraphNode,
    SourceKind,
    WorkerCatalogue,
)
from fleet_contracts.control import Control, ControlKind
from fleet_contracts.dead_letter import DeadLetter, DeadLetterReason
from fleet_contracts.declined import Declined, DeclinedAnswer, DeclinedDecision
from fleet_contracts.events import EventKind, RunEvent, RunEvents
from fleet_contracts.job import Job
from fleet_contracts.messages import Document, MalformedMessage, Message
from fleet_contracts.retry import RetryPolicy
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus, WorkerState
from fleet_contracts.wheel import (
    InstalledWheel,
    SkippedWheel,
    WheelAction,
    WheelActor,
    WheelEvent,
    WheelInUse,
    WheelSource,
)
from fleet_contracts.worker_record import Machine, WheelSync, WheelSyncResult, WorkerRecord

SAMPLES = Path(__file__).parent / "samples"

JOB = Job(
    run_id="0b8f6f0e-58a7-4f2e-9a39-6a0d5f7f5f10",
    flow_name="hello",
    tag="default",
    tags=["default", "demo"],
    params={"name": "Ada", "times": 2},
    submitted_at=1760000000.25,
    tenant_id="anonymous",
)
PENDING = RunSnapshot.pending(JOB, now=1760000000.5)
RUNNING = PENDING.claim(
    worker_id="w1",
    worker_instance_id="w1-7f3a",
    ack_subject="$JS.ACK.PYOCO_WORK.pyoco_workers_default.1.1.1.1760000000500000000.0",
    now=1760000001.0,
).model_copy(update={"tasks": {"greet": TaskStatus.RUNNING}})
RECORDS = {"greet": {"state": "SUCCEEDED", "started_at": 1760000001.1, "ended_at": 1760000001.9}}
COMPLETED = RUNNING.finish(RunStatus.COMPLETED, now=1760000002.0).model_copy(
    update={"tasks": {"greet": TaskStatus.SUCCEEDED}, "task_records": RECORDS}
)
FAILED = RUNNING.finish(
    RunStatus.FAILED,
    now=1760000002.0,
    error="ValueError: no name",
    reason=DeadLetterReason.EXECUTION_ERROR.value,
).model_copy(update={"tasks": {"greet": TaskStatus.FAILED}})
TRUNCATED = FAILED.model_copy(
    update={
        "params": {},
        "tasks": {},
        "task_records_truncated": True,
        "tasks_truncated": True,
        "result_truncated": True,
        "params_truncated": True,
    }
)
RULED = JOB.model_copy(
    update={
        "retry": RetryPolicy(max_attempts=3, base_seconds=2.0, cap_seconds=60.0),
        "deadline_at": 1760003600.0,
        "rerun_of": "5b0d7f0e-58a7-4f2e-9a39-6a0d5f7f5f10",
        "idempotency_key": "orders:4711:1760000000250",
    }
)
SCHEDULED = JOB.model_copy(update={"not_before": 1760003600.25})
TRACED = JOB.model_copy(
    update={
        "request_id": "4f1c2b7a9d3e",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "vendor=opaque",
    }
)
RETRYING = (
    RunSnapshot.pending(RULED, now=1760000000.5)
    .claim(worker_id="w1", worker_instance_id="w1-7f3a", ack_subject=None, now=1760000001.0)
    .retry_later(
        now=1760000002.0,
        not_before=1760000004.0,
        error="ValueError: no name",
        reason=DeadLetterReason.EXECUTION_ERROR.value,
    )
)
ACME_1 = WheelInUse(name="acme_tasks-1.2.0-py3-none-any.whl", sha256_hex="6f" * 32)
ACME_2 = WheelInUse(name="acme_tasks-1.3.0-py3-none-any.whl", sha256_hex="70" * 32)
WITH_WHEELS = (
    PENDING.claim(worker_id="w1", worker_instance_id="w1-7f3a", ack_subject=None, now=1760000001.0, wheels=[ACME_1])
    .hand_back(now=1760000002.0, interrupted=True)
    .claim(worker_id="w2", worker_instance_id="w2-11c0", ack_subject=None, now=1760000003.0, wheels=[ACME_2])
)

GOLDEN: dict[str, Message] = {
    "job": JOB,
    "job_yaml": JOB.model_copy(
        update={
            "workflow_yaml": "version: 1\n",
            "workflow_yaml_sha256": "09bfcc6a14b83e2192b8673677725c84883ee9cd0c70e45c9ec09daa8f2b2847",
            "workflow_yaml_bytes": 11,
            "api_key_id": "key1",
            "tenant_id": "acme",
        }
    ),
    "job_with_rules": RULED,
    "job_traced": TRACED,
    "snapshot_pending": PENDING,
    "snapshot_traced": RunSnapshot.pending(TRACED, now=1760000000.5),
    "snapshot_scheduled": RunSnapshot.pending(SCHEDULED, now=1760000000.5).claim(
        worker_id="w1", worker_instance_id="w1-7f3a", ack_subject=None, now=1760003601.0
    ),
    "snapshot_waiting_for_retry": RETRYING,
    "snapshot_reopened": FAILED.reopen(now=1760000003.0),
    "snapshot_running": RUNNING,
    "snapshot_completed": COMPLETED,
    "snapshot_failed": FAILED,
    "snapshot_truncated": TRUNCATED,
    "snapshot_with_wheels": WITH_WHEELS,
    "snapshot_cancelling": RUNNING.request_cancel(by="key1", now=1760000001.5, reason="a typo"),
    "control": Control(kind=ControlKind.CANCEL, run_id=JOB.run_id),
    "control_offer": Control(
        kind=ControlKind.OFFER,
        offer=Declined(
            run_id=JOB.run_id,
            flow_name="hello",
            tag="default",
            ack_subject="$JS.ACK.PYOCO_WORK.pyoco_workers_default.1.7.9.0.0",
            num_delivered=1,
            reason="it is offered",
            is_wanted=True,
        ),
        offered_seconds=1.5,
    ),
    "control_job": Control(
        kind=ControlKind.JOB,
        job=JOB,
        ack_subject="$JS.ACK.PYOCO_WORK.pyoco_workers_default.1.7.9.0.0",
        num_delivered=1,
    ),
    "declined": Declined(
        run_id=JOB.run_id,
        flow_name="hello",
        tag="default",
        ack_subject="$JS.ACK.PYOCO_WORK.pyoco_workers_default.1.7.9.0.0",
        num_delivered=1,
        reason="flow 'hello' is not known to this worker; known flows: report",
        loaded_at=1760000000.0,
    ),
    "declined_answer": DeclinedAnswer(
        decision=DeclinedDecision.NOT_FOUND, error="flow 'hello' is offered by no live worker of the tag default"
    ),
    "worker_catalogue": WorkerCatalogue(
        worker_id="w1",
        instance_id="w1-7f3a",
        tags=["default"],
        loaded_at=1760000000.0,
        catalogue=Catalogue(
            flows=[
                FlowOffer(
                    name="hello",
                    source=FlowSource(kind=SourceKind.FILE, place="hello.py", line=12),
                    description="Greets somebody.",
                    params_schema={
                        "type": "object",
                        "properties": {"name": {"type": "string", "default": "world"}},
                        "additionalProperties": False,
                    },
                    graph=FlowGraph(
                        nodes=[GraphNode(name="greet"), GraphNode(name="shout")],
                        edges=[GraphEdge(source="greet", target="shout")],
                    ),
                    defaults=FlowDefaults(retry=RetryPolicy(max_attempts=3), timeout_sec=600.0, tag="default"),
                )
            ],
            broken=[
                BrokenSource(
                    place="etl.py", exc_type="ModuleNotFoundError", message="No module named 'pandas'", line=3
                )
            ],
        ),
    ),
    "dead_letter": DeadLetter(
        timestamp=1760000002.0,
        reason=DeadLetterReason.EXECUTION_ERROR,
        error="ValueError: no name",
        run_id=JOB.run_id,
        flow_name="hello",
        tag="default",
        tags=["default", "demo"],
        worker_id="w1",
        num_delivered=1,
        subject="pyoco.work.default",
        attempt=1,
        tenant_id="anonymous",
    ),
    "worker_record": WorkerRecord(
        worker_id="w1",
        instance_id="w1-7f3a",
        state=WorkerState.RUNNING,
        last_seen_at=1760000001.0,
        last_heartbeat_at=1760000001.0,
        tags=["default"],
        current_run_id=JOB.run_id,
        current_run_ids=[JOB.run_id],
        last_run_id=JOB.run_id,
        last_run_status="RUNNING",
        last_run_started_at=1760000001.0,
        slots=2,
        started_at=1759999990.0,
        flows=["hello", "report"],
        flows_error="etl.py could not be loaded: ModuleNotFoundError: No module named 'pandas'",
        machine=Machine(
            host="box1",
            pid=4711,
            platform="Linux-6.1-x86_64",
            python_version="3.12.8",
            pyoco_version="0.8.0",
            fleet_version="0.1.0",
            cpu_count=2,
            cpu_percent=12.5,
            memory_bytes=104857600,
            memory_total_bytes=8589934592,
        ),
        wheel_sync=WheelSync(
            enabled=True,
            last_result=WheelSyncResult.OK,
            last_attempt_at=1760000000.0,
            last_success_at=1760000000.0,
            last_synced_at=1760000000.0,
            selected_count=1,
            updated_count=1,
            skipped_incompatible_count=1,
            selected_wheels=["acme_tasks-1.2.0-py3-none-any.whl"],
            updated_wheels=["acme_tasks-1.2.0-py3-none-any.whl"],
            skipped_incompatible=[
                SkippedWheel(name="acme_fast-1.0-cp39-cp39-win32.whl", reason="no tag of it fits this Python")
            ],
            installed_wheels=[
                InstalledWheel(
                    name="acme_tasks-1.2.0-py3-none-any.whl",
                    package="acme-tasks",
                    version="1.2.0",
                    nuid="4GQv1xJ9y8sZ0a1b2c3d4e",
                    sha256_hex="6f" * 32,
                    tags=["default"],
                )
            ],
        ),
    ),
    "wheel_event": WheelEvent(
        event_id="01JC9QX7Z3",
        occurred_at=1760000000.0,
        action=WheelAction.UPLOAD,
        wheel_name="acme_tasks-1.2.0-py3-none-any.whl",
        tags=["default"],
        size_bytes=2048,
        sha256_hex="6f" * 32,
        replace=True,
        actor=WheelActor(tenant_id="acme", api_key_id="key1"),
        source=WheelSource(
            remote_addr="192.0.2.7", x_forwarded_for="192.0.2.7", x_real_ip="192.0.2.7", user_agent="pyoco-client/0.1"
        ),
    ),
    "run_events": RunEvents(
        run_id=JOB.run_id,
        attempt=1,
        batch=0,
        worker_id="w1",
        events=[
            RunEvent(at=1760000001.0, kind=EventKind.RUN, status="RUNNING"),
            RunEvent(at=1760000001.1, kind=EventKind.TASK, status="RUNNING", task="greet"),
            RunEvent(at=1760000001.2, kind=EventKind.LOG, task="greet", stream="stdout", text="hello Ada\n"),
            RunEvent(
                at=1760000001.3, kind=EventKind.LOG, task="greet", stream="stderr", text="who?\n", level="WARNING"
            ),
        ],
    ),
}

# Only what appendices E and F require, as a peer would write it.
MINIMAL: dict[str, tuple[type[Message], dict[str, Any]]] = {
    "job": (Job, {"run_id": "r1", "flow_name": "hello", "tag": "default", "submitted_at": 1760000000}),
    "snapshot": (
        RunSnapshot,
        {
            "run_id": "r1",
            "flow_name": "hello",
            "status": "PENDING",
            "params": {},
            "tasks": {},
            "heartbeat_at": 1760000000,
            "updated_at": 1760000000,
        },
    ),
    "dead_letter": (DeadLetter, {"timestamp": 1760000000, "reason": "a_reason_of_a_newer_peer", "error": None}),
    "worker_record": (
        WorkerRecord,
        {
            "worker_id": "w1",
            "instance_id": "i1",
            "state": "IDLE",
            "hidden": False,
            "last_seen_at": 1760000000,
            "last_heartbeat_at": 1760000000,
            "tags": ["default"],
        },
    ),
    "worker_record_v0": (WorkerRecord, {"worker_id": "w1", "heartbeat_at": 1760000000, "tags": None}),
}


def sample(name: str) -> bytes:
    return (SAMPLES / f"{name}.json").read_bytes()


def test_every_sample_has_a_message() -> None:
    assert {path.stem for path in SAMPLES.glob("*.json")} == GOLDEN.keys()


@pytest.mark.parametrize("name", GOLDEN)
def test_what_we_write_is_the_sample(name: str) -> None:
    assert json.loads(GOLDEN[name].encode()) == json.loads(sample(name))


@pytest.mark.parametrize("name", GOLDEN)
def test_the_sample_is_read_back_as_the_message(name: str) -> None:
    message = GOLDEN[name]
    assert type(message).decode(sample(name)) == message


@pytest.mark.parametrize("name", GOLDEN)
def test_fields_we_do_not_know_are_ignored_but_kept_in_documents(name: str) -> None:
    kind = type(GOLDEN[name])
    newer = json.loads(sample(name)) | {"schema_version": 9, "from_the_future": {"a": None}}
    message = kind.decode(json.dumps(newer).encode())
    written = json.loads(message.encode())
    if issubclass(kind, Document):
        assert written == newer
    else:
        assert written == json.loads(sample(name))


@pytest.mark.parametrize("name", MINIMAL)
def test_a_peers_minimal_message_is_understood(name: str) -> None:
    kind, required = MINIMAL[name]
    message = kind.decode(json.dumps(required).encode())
    assert kind.decode(message.encode()) == message


@pytest.mark.parametrize("name", ["job", "snapshot", "dead_letter"])
def test_a_message_without_a_required_field_is_malformed_and_the_field_is_named(name: str) -> None:
    kind, required = MINIMAL[name]
    for field in required.keys() - {"params", "tasks", "error"}:
        rest = {key: value for key, value in required.items() if key != field}
        with pytest.raises(MalformedMessage, match=f"{kind.__name__}: {field}: Field required"):
            kind.decode(json.dumps(rest).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe"])
@pytest.mark.parametrize("kind", [Job, RunSnapshot, DeadLetter, WorkerRecord, RunEvents])
def test_bytes_that_are_no_message_are_malformed(kind: type[Message], data: bytes) -> None:
    with pytest.raises(MalformedMessage, match=kind.__name__):
        kind.decode(data)


@pytest.mark.parametrize("run_id", ["", "a.b", "a b", "a*", "../x"])
def test_a_run_id_that_cannot_be_a_key_is_refused(run_id: str) -> None:
    _, required = MINIMAL["job"]
    with pytest.raises(MalformedMessage, match="run_id"):
        Job.decode(json.dumps(required | {"run_id": run_id}).encode())


def test_what_a_malformed_message_contained_is_not_repeated() -> None:
    with pytest.raises(MalformedMessage) as refusal:
        Job.decode(b'{"run_id": "r1", "params": "my secret"}')
    assert "my secret" not in str(refusal.value)

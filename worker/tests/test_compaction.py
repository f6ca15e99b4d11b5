"""Snapshots stay within their limit, and task states are the last to go."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_contracts.snapshot import AttemptOutcome, AttemptRecord, RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_worker.boundary.compaction import compact, compact_records, compact_result, without_tasks
from fleet_worker.job.snapshots import Snapshots

from .conftest import Desk

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=2000),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=20), inner, max_size=5),
    max_leaves=20,
)


def ended(**changes: Any) -> RunSnapshot:
    plain = RunSnapshot(
        run_id="r1",
        flow_name="hello",
        status=RunStatus.FAILED,
        heartbeat_at=1.0,
        updated_at=1.0,
        params={"name": "Ada"},
    )
    return plain.model_copy(update=changes)


def marks(snapshot: RunSnapshot) -> set[str]:
    return {name for name, value in snapshot.model_dump().items() if name.endswith("_truncated") and value}


def record(**more: Any) -> dict[str, Any]:
    return {"state": "SUCCEEDED", "started_at": 1.0, "inputs": {}, "output": None, "traceback": None, **more}


def test_a_small_snapshot_is_left_alone() -> None:
    snapshot = ended(task_records={"a": record(output="fine")})
    assert compact(snapshot, 10_000) is snapshot


def test_big_values_are_shortened_first() -> None:
    snapshot = ended(
        tasks={"a": TaskStatus.SUCCEEDED},
        task_records={
            "a": record(output="x" * 50_000, inputs={"big": list(range(9999)), "n": 1}),
            "b": record(output=7),
        },
    )
    smaller = compact(snapshot, 10_000)
    assert smaller.task_records_truncated
    assert smaller.task_records["a"]["output"].endswith("… (50000 characters)")
    assert smaller.task_records["a"]["inputs"]["n"] == 1
    assert smaller.task_records["b"] == record(output=7)
    assert smaller.params == snapshot.params


def test_then_inputs_outputs_and_tracebacks_go_and_then_the_records() -> None:
    records = {f"t{number}": record(output="x" * 400, error="bad") for number in range(100)}
    tasks = dict.fromkeys(records, TaskStatus.SUCCEEDED)
    lean = compact(ended(tasks=tasks, task_records=records), 20_000)
    assert lean.task_records["t1"] == {"state": "SUCCEEDED", "started_at": 1.0, "error": "bad"}
    leanest = compact(ended(tasks=tasks, task_records=records), 5_000)
    assert (leanest.task_records, leanest.tasks, leanest.task_records_truncated) == ({}, tasks, True)


def test_the_result_goes_after_the_records_and_before_all_else() -> None:
    attempts = [
        AttemptRecord(attempt=number, outcome=AttemptOutcome.FAILED, end_time=2.0, error="e" * 500)
        for number in range(1, 11)
    ]
    snapshot = ended(
        result="r" * 5_000, task_records={"a": record(output="x" * 5_000)}, earlier_attempts=attempts, error="bad"
    )
    assert compact(snapshot, 13_000).result == snapshot.result
    without_result = compact(snapshot, 9_000)
    assert (without_result.result, marks(without_result)) == (None, {"task_records_truncated", "result_truncated"})
    assert without_result.earlier_attempts == attempts
    silent = compact(snapshot, 3_000).earlier_attempts
    assert [(attempt.attempt, attempt.error) for attempt in silent] == [(number, None) for number in range(1, 11)]


def test_a_new_attempt_does_not_inherit_what_the_one_before_left_out() -> None:
    snapshot = without_tasks(compact(ended(result="r" * 5_000), 2_000))
    assert marks(snapshot) == {"result_truncated", "tasks_truncated"}
    again = snapshot.reopen(now=3.0).claim(worker_id="w1", worker_instance_id="me", ack_subject=None, now=4.0)
    assert marks(again) == set()


def test_a_result_fits_its_own_limit_or_is_left_out() -> None:
    assert compact_result(["a"], 100) == (["a"], False)
    assert compact_result("a" * 100, 100) == (None, True)
    assert compact_result(None, 1) == (None, False)


def test_error_and_params_go_last() -> None:
    snapshot = ended(error="e" * 9_000, params={"data": "p" * 9_000}, task_records={"a": record()})
    shorter = compact(snapshot, 12_000)
    assert (len(shorter.error or ""), shorter.params) == (1024 + len("… (9000 characters)"), snapshot.params)
    shortest = compact(snapshot, 2_000)
    assert shortest.params == {}
    assert marks(shortest) == {"params_truncated", "task_records_truncated"}


def test_without_tasks_the_end_can_always_be_recorded() -> None:
    snapshot = ended(tasks=dict.fromkeys((f"task-{number}" for number in range(5000)), TaskStatus.PENDING))
    assert len(compact(snapshot, 1024).encode()) > 1024
    assert len(without_tasks(compact(snapshot, 1024)).encode()) <= 1024


async def test_task_states_stay_above_the_limit_as_long_as_nats_takes_them(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = Snapshots(desk.link, "pyoco_runs", max_bytes=10_000)
    tasks = dict.fromkeys((f"task-{number}" for number in range(5000)), TaskStatus.SUCCEEDED)
    assert RunSnapshot.decode(snapshots.encode(ended(tasks=tasks))).tasks == tasks
    assert [line.err_id for line in caplog.records if hasattr(line, "err_id")] == ["ERR-PYOCO-0010"]
    far_too_many = dict.fromkeys((f"task-{number}" for number in range(60_000)), TaskStatus.SUCCEEDED)
    written = RunSnapshot.decode(snapshots.encode(ended(tasks=far_too_many)))
    assert (written.status, written.tasks) == (RunStatus.FAILED, {})
    assert marks(written) == {"params_truncated", "tasks_truncated"}


@settings(deadline=None, max_examples=50)
@given(
    records=st.dictionaries(
        st.text(max_size=20), st.fixed_dictionaries({"inputs": JSON, "output": JSON, "error": JSON}), max_size=8
    ),
    params=st.dictionaries(st.text(max_size=20), JSON, max_size=5),
    error=st.none() | st.text(max_size=5000),
    tasks=st.dictionaries(st.text(max_size=20), st.sampled_from(TaskStatus), max_size=60),
    result=JSON,
    max_bytes=st.integers(1024, 20_000),
)
def test_no_snapshot_is_above_the_limit_unless_its_task_states_alone_are(
    records: dict[str, Any],
    params: dict[str, Any],
    error: str | None,
    tasks: dict[str, TaskStatus],
    result: Any,
    max_bytes: int,
) -> None:
    snapshot = ended(task_records=records, params=params, error=error, tasks=tasks, result=result)
    smaller = compact(snapshot, max_bytes)
    assert smaller.tasks == tasks
    assert smaller.task_records_truncated == (smaller.task_records != records)
    if len(smaller.encode()) > max_bytes:
        assert (smaller.task_records, smaller.params, smaller.result) == ({}, {}, None)
        assert len(smaller.error or "") <= 1100


@settings(deadline=None, max_examples=50)
@given(
    records=st.dictionaries(st.text(max_size=20), st.fixed_dictionaries({"output": JSON}), max_size=8),
    max_bytes=st.integers(2, 5000),
)
def test_records_fit_their_own_limit(records: dict[str, Any], max_bytes: int) -> None:
    smaller, truncated = compact_records(records, max_bytes)
    assert len(orjson.dumps(smaller)) <= max_bytes
    assert truncated == (smaller != records)

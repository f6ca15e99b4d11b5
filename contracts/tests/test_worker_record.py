"""The state of a worker at a given moment, by its record, also by one of an older worker."""

import json
from typing import Any

import pytest

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord


def record(**fields: Any) -> WorkerRecord:
    return WorkerRecord.decode(json.dumps({"worker_id": "w1", "last_seen_at": 100.0} | fields).encode())


@pytest.mark.parametrize(
    ("written", "silence", "effective"),
    [
        ("IDLE", 20.0, WorkerState.IDLE),
        ("IDLE", 20.1, WorkerState.DISCONNECTED),
        ("RUNNING", 19.0, WorkerState.RUNNING),
        ("RUNNING", 21.0, WorkerState.DISCONNECTED),
        ("STOPPED_GRACEFUL", 9999.0, WorkerState.STOPPED_GRACEFUL),
        ("DISCONNECTED", 0.0, WorkerState.DISCONNECTED),
    ],
)
def test_silence_disconnects_a_worker_unless_it_has_stopped(
    written: str, silence: float, effective: WorkerState
) -> None:
    worker = record(state=written)
    now = 100.0 + silence
    assert worker.effective_state(now=now, disconnect_timeout_sec=20.0) is effective
    assert worker.is_alive(now=now, disconnect_timeout_sec=20.0) == (effective.value in ("IDLE", "RUNNING"))


def test_a_record_of_v0_is_read_with_what_it_has() -> None:
    old = WorkerRecord.decode(b'{"worker_id": "w1", "heartbeat_at": 5.5, "hidden": null, "tags": null}')
    assert (old.last_seen_at, old.last_heartbeat_at, old.instance_id) == (5.5, 5.5, "")
    assert (old.state, old.hidden, old.tags) == (WorkerState.IDLE, False, [])


def test_a_record_without_a_state_is_running_while_it_names_a_run() -> None:
    assert record(current_run_id="r1").state is WorkerState.RUNNING


def test_a_record_that_knows_one_run_at_a_time_has_that_one_in_hand() -> None:
    assert record(state="RUNNING", current_run_id="r1").current_run_ids == ["r1"]
    assert record(state="RUNNING", current_run_id="r1", current_run_ids=[]).current_run_ids == ["r1"]
    assert record(current_run_id="r2", current_run_ids=["r1", "r2"]).current_run_ids == ["r1", "r2"]
    assert record(state="IDLE", current_run_id=None).current_run_ids == []


def test_a_null_that_we_do_not_know_survives() -> None:
    assert json.loads(record(from_the_future=None).encode())["from_the_future"] is None


@pytest.mark.parametrize("fields", [{"last_seen_at": None}, {"state": "ASLEEP"}, {"worker_id": None}])
def test_a_record_that_lacks_fields_is_malformed(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage, match="WorkerRecord"):
        record(**fields)

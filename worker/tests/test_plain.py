"""Every value that a task returns has a form in JSON; frames carry it across."""

import threading
from datetime import UTC, datetime

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_worker.boundary.frames import Conclusion, Decoder, Progress, Run, encode
from fleet_worker.runner.plain import json_safe


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_values_without_a_json_form_become_their_repr() -> None:
    lock = threading.Lock()
    assert json_safe({"lock": lock, "n": 1}) == {"lock": repr(lock), "n": 1}
    assert json_safe({1, 2}) == [1, 2]
    assert json_safe([2**80, Rude(), "\udcff", {("a", 1): None}]) == [
        str(2**80),
        "<Rude whose repr raised RuntimeError>",
        "\\udcff",
        {"('a', 1)": None},
    ]


def test_values_that_json_can_hold_are_not_touched() -> None:
    value = {"when": datetime(2026, 1, 1, tzinfo=UTC), "list": [1, 2.5, None, True, "ü"]}
    assert json_safe(value) is value


def test_a_value_that_contains_itself_has_a_form_in_json() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert orjson.dumps(json_safe(loop))


@given(st.integers(0, 250))
def test_no_value_is_so_deep_that_its_snapshot_cannot_be_read(depth: int) -> None:
    value: object = "the end"
    for _ in range(depth):
        value = [value]
    records = json_safe({"deep": {"state": "SUCCEEDED", "output": json_safe(value)}})
    snapshot = {"run_id": "r1", "flow_name": "f", "status": "COMPLETED", "heartbeat_at": 1, "updated_at": 1}
    assert RunSnapshot.decode(orjson.dumps({**snapshot, "task_records": records, "result": json_safe(value)}))
    if depth <= 32:
        assert json_safe(value) is value


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(), max_size=5), st.integers(1, 50))
def test_frames_survive_any_way_of_being_cut(texts: list[str], step: int) -> None:
    frames = [
        Run("r1", "hello", '{"n": 1}', "/tmp/r1", 10, 10),
        Progress([{"kind": "log", "text": text} for text in texts], {"a": TaskStatus.RUNNING}, None),
        Conclusion(RunStatus.FAILED, "no", DeadLetterReason.EXECUTION_ERROR, {"a": TaskStatus.FAILED}),
        Conclusion(RunStatus.COMPLETED, tasks={}, task_records={"a": {"output": texts}}),
    ]
    data = b"".join(encode(frame) for frame in frames)
    decoder = Decoder()
    seen = [frame for start in range(0, len(data), step) for frame in decoder.feed(data[start : start + step])]
    assert seen == frames

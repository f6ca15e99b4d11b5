"""Every value that a task returns has a form in JSON; frames carry it across."""

import threading
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, model_serializer

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_worker.boundary.frames import Conclusion, Decoder, Progress, Run, encode
from fleet_worker.runner.recording.plain import json_safe
from fleet_worker.runner.recording.results import is_larger


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Colour(StrEnum):
    RED = "red"


class Size(Enum):
    SMALL = 1.5


@dataclass
class Point:
    x: Decimal
    where: Path


class Order(BaseModel):
    at: datetime
    items: list[Point]
    price: Decimal


class Broken(BaseModel):
    n: int

    @model_serializer
    def fail(self) -> Any:
        raise RuntimeError("no")


class FloatOfNumpy(float):
    """Numpy is not installed: its types are known by the name of their module."""

    __module__ = "numpy"


class ArrayOfNumpy:
    __module__ = "numpy"
    size = 2

    def tolist(self) -> list[Any]:
        return [1, Decimal("2.5")]


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SENSIBLE = [
    (Decimal("1.50"), "1.50"),
    (Path("/data/a.csv"), "/data/a.csv"),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (AT, "2026-01-02T03:04:05+00:00"),
    (AT.date(), "2026-01-02"),
    (AT.time(), "03:04:05"),
    (timedelta(minutes=1.5), 90.0),
    (Colour.RED, "red"),
    (Size.SMALL, 1.5),
    ((1, {2}), [1, [2]]),
    (deque([1, range(2)]), [1, [0, 1]]),
    (Point(Decimal(1), Path("a")), {"x": "1", "where": "a"}),
    (
        Order(at=AT, items=[Point(Decimal(1), Path("a"))], price=Decimal("2.50")),
        {"at": "2026-01-02T03:04:05+00:00", "items": [{"x": "1", "where": "a"}], "price": "2.50"},
    ),
    (Broken(n=1), {"n": 1}),
    (FloatOfNumpy(2.5), 2.5),
    (ArrayOfNumpy(), [1, "2.5"]),
    (b"text", "text"),
    (b"\xff\x00", "/wA="),
    (ValueError("no"), "ValueError: no"),
    (MappingProxyType({"a": Decimal(1)}), {"a": "1"}),
    (threading.Lock(), "<_thread.lock: it has no JSON form>"),
    (Rude(), f"<{__name__}.Rude: it has no JSON form>"),
]


@pytest.mark.parametrize(("value", "form"), SENSIBLE, ids=[type(value).__name__ for value, _ in SENSIBLE])
def test_values_become_sensible_json(value: Any, form: Any) -> None:
    def read(value: Any) -> Any:
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))

    assert read(json_safe(value)) == form
    assert read(json_safe({"deep": [value]})) == {"deep": [form]}
    # Beside a value that orjson refuses altogether.
    assert json_safe([value, 2**80]) == [form, str(2**80)]


def test_large_numbers_lone_surrogates_and_unusual_keys_have_a_form_in_json() -> None:
    assert json_safe([2**80, "\udcff", {("a", 1): None, Decimal("1.5"): 1, Size.SMALL: 2}]) == [
        str(2**80),
        "\\udcff",
        {"('a', 1)": None, "1.5": 2},
    ]


def test_a_large_value_is_found_to_be_so_before_it_is_copied() -> None:
    class Huge(ArrayOfNumpy):
        __module__ = "numpy"
        size = 10**12

    large = [Huge(), [Huge()], range(10**12), Order.model_construct(items=["x" * 1001])]
    assert [is_larger(value, 1000) for value in large] == [True] * 4


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

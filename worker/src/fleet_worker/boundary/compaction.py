"""Keeps a snapshot within its size limit: task records are cut first, then the result (REQ-0011)."""

from collections.abc import Iterator
from typing import Any

import orjson

from fleet_contracts.snapshot import RunSnapshot

_VALUE_CHARACTERS = 512
_ERROR_CHARACTERS = 1024
_BULKY = ("inputs", "output", "traceback", "artifacts", "iterations")
# A record without its bulky fields is hardly smaller than this: with too many records, cutting them is not tried.
_SMALLEST_RECORD_BYTES = 64


def compact(snapshot: RunSnapshot, max_bytes: int) -> RunSnapshot:
    """The snapshot with as little left out as the limit allows; task states always stay."""
    smaller = snapshot
    for smaller in _smaller_versions(snapshot, max_bytes):
        if len(smaller.encode()) <= max_bytes:
            break
    return smaller


def without_tasks(snapshot: RunSnapshot) -> RunSnapshot:
    """The snapshot without its task states: the last resort, so that the end of a run can always be recorded."""
    return snapshot.truncated(tasks={})


def compact_result(result: Any, max_bytes: int) -> tuple[Any, bool]:
    """The result, or None if it exceeds its own limit, and whether it was left out."""
    too_large = result is not None and _size(result) > max_bytes
    return (None, True) if too_large else (result, False)


def compact_records(records: dict[str, Any], max_bytes: int) -> tuple[dict[str, Any], bool]:
    """Task records cut to their own limit, and whether anything was left out."""
    if _size(records) <= max_bytes:
        return records, False
    smaller: dict[str, Any] = {}
    for smaller in _smaller_records(records, max_bytes):
        if _size(smaller) <= max_bytes:
            break
    return smaller, True


def _smaller_versions(snapshot: RunSnapshot, max_bytes: int) -> Iterator[RunSnapshot]:
    yield snapshot
    for records in _smaller_records(snapshot.task_records, max_bytes):
        snapshot = snapshot.truncated(task_records=records)
        yield snapshot
    if snapshot.result is not None:
        snapshot = snapshot.truncated(result=None)
        yield snapshot
    if snapshot.error is not None:
        snapshot = snapshot.truncated(error=_cut(snapshot.error, _ERROR_CHARACTERS))
        yield snapshot
    if snapshot.earlier_attempts:
        # The ledger keeps their errors and wheels.
        silent = [attempt.model_copy(update={"error": None, "wheels": []}) for attempt in snapshot.earlier_attempts]
        snapshot = snapshot.truncated(earlier_attempts=silent)
        yield snapshot
    if snapshot.params:
        # The ledger keeps the params; the worker has them from the job.
        yield snapshot.truncated(params={})


def _smaller_records(records: dict[str, Any], max_bytes: int) -> Iterator[dict[str, Any]]:
    if not records:
        return
    if len(records) * _SMALLEST_RECORD_BYTES <= max_bytes:
        yield {task: _shorten_values(record) for task, record in records.items()}
        yield {task: _without_bulk(record) for task, record in records.items()}
    yield {}


def _shorten_values(record: Any) -> Any:
    if not isinstance(record, dict):
        return _shorten(record)
    return {
        name: {key: _shorten(item) for key, item in value.items()} if isinstance(value, dict) else _shorten(value)
        for name, value in record.items()
        if name != "iterations"  # the count of them stays
    }


def _without_bulk(record: Any) -> Any:
    if not isinstance(record, dict):
        return _shorten(record)
    return {name: _shorten(value) for name, value in record.items() if name not in _BULKY}


def _shorten(value: Any) -> Any:
    if isinstance(value, str):
        return _cut(value, _VALUE_CHARACTERS)
    if isinstance(value, dict | list):
        text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
        return _cut(text.decode(), _VALUE_CHARACTERS) if len(text) > _VALUE_CHARACTERS else value
    return value


def _size(value: Any) -> int:
    return len(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))


def _cut(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    return f"{text[:characters]}… ({len(text)} characters)"

"""The result of a flow: the output of its last task, or of each task that no other task follows."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from pyoco import Flow
from pyoco.core.models import TaskRecord

from fleet_kit.logs.json_values import MAX_DEPTH

from ...boundary.masking import SECRETS
from .plain import fields_of, is_numpy

# Values up to this multiple of the limit in total are kept: compaction of their JSON preserves more of them.
_RECORDS_SHARE = 4
_SHOWN_CHARACTERS = 512
# Not counted; there may be millions.
_SCALARS = {int, float, bool, type(None)}


def result_of(flow: Flow, records: Mapping[str, TaskRecord]) -> Any:
    if flow.has_control_flow():
        # Its tasks run one after another, and only the run shows which one is the last.
        ended = [record for record in records.values() if record.ended_at is not None]
        return max(ended, key=lambda record: record.ended_at).output if ended else None
    # A task may be part of other flows as well: only its dependents in this flow count.
    last = sorted(task.name for task in flow.tasks if task.dependents.isdisjoint(flow.tasks))
    if len(last) == 1:
        return records[last[0]].output
    return {name: records[name].output for name in last} or None


def is_larger(value: Any, max_bytes: int) -> bool:
    """Whether the value's JSON is certainly larger; needs no copy, because the value may fill the memory."""
    return _size_within(value, max_bytes) is None


def leave_out_large_values(records: Mapping[str, TaskRecord], max_bytes: int) -> bool:
    """Replace values that no snapshot could hold, before records are copied as JSON; True if there were any."""
    left, was_any = max_bytes * _RECORDS_SHARE, False

    def kept(value: Any) -> Any:
        nonlocal left, was_any
        if (size := _size_within(value, left)) is not None:
            left -= size
            return value
        was_any = True
        if isinstance(value, str):
            return f"{SECRETS.beginning(value, _SHOWN_CHARACTERS)}… ({len(value)} characters)"
        return f"<{type(value).__name__}: too large to be shown>"

    for record in records.values():
        record.inputs = {name: kept(value) for name, value in record.inputs.items()}
        record.output = kept(record.output)
    return was_any


def _size_within(value: Any, max_bytes: int) -> int | None:
    """A lower bound for the size of the value's JSON; None if it exceeds the limit."""
    if isinstance(value, str):
        return len(value) if len(value) <= max_bytes else None
    size, found = 0, [(value, 0)]
    while found:
        value, depth = found.pop()
        if type(value) in _SCALARS:
            continue
        if is_numpy(value):
            size += getattr(value, "size", 1)
            if size > max_bytes:
                return None
            continue
        value = fields_of(value) or value
        if not isinstance(value, str | bytes | bytearray | dict | list | tuple | set | frozenset | range | deque):
            continue
        size += len(value)
        if size > max_bytes:
            return None
        if isinstance(value, str | bytes | bytearray | range) or depth == MAX_DEPTH:
            continue
        if isinstance(value, dict):
            found += [(key, depth + 1) for key in value]
        found += [(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value)]
    return size

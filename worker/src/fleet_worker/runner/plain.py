"""Converts the values of tasks to JSON that every reader of a snapshot can parse."""

from typing import Any

import orjson
from pydantic_core import from_json

from fleet_kit.logs.json_values import MAX_DEPTH, make_plain

# The value is nested in records, and those in a snapshot.
_LEVELS_AROUND = 8


def json_safe(value: Any) -> Any:
    """The value itself if JSON can represent it, else the nearest form that JSON can."""
    if value is None or isinstance(value, bool):
        return value
    try:
        data = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return make_plain(value)
    return value if _can_be_read(data) else make_plain(value)


def _can_be_read(data: bytes) -> bool:
    """Whether its nesting can be parsed: readers of a snapshot accept 200 levels, and more can be written."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return True
    try:
        from_json(b"[" * _LEVELS_AROUND + data + b"]" * _LEVELS_AROUND)
    except ValueError:
        return False
    return True

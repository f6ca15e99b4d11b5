"""Any value as something JSON can hold: what has no JSON form becomes its repr."""

import math
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic_core import from_json

_MAX_DEPTH = 32
# The value is told inside of records, records inside of a snapshot.
_LEVELS_AROUND = 8
_MAX_INTEGER = 2**63


def json_safe(value: Any) -> Any:
    """The value itself if JSON can hold it, else the nearest thing that it can."""
    if value is None or isinstance(value, bool):
        return value
    try:
        data = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return make_plain(value)
    return value if _can_be_read(data) else make_plain(value)


def make_plain(value: Any, depth: int = 0) -> Any:
    """A copy made of None, bool, int, float, str, list and dict with str keys only."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value).encode(errors="backslashreplace").decode()
    if isinstance(value, int):
        return int(value) if -_MAX_INTEGER <= value < _MAX_INTEGER else str(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {_key(key): make_plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [make_plain(item, depth + 1) for item in value]
    return _describe(value)


def _can_be_read(data: bytes) -> bool:
    """Any depth can be written, but whoever reads a snapshot goes down 200 levels and no further."""
    if data.count(b"[") + data.count(b"{") <= _MAX_DEPTH:
        return True
    try:
        from_json(b"[" * _LEVELS_AROUND + data + b"]" * _LEVELS_AROUND)
    except ValueError:
        return False
    return True


def _key(key: Any) -> str:
    return str(make_plain(key)) if isinstance(key, str | int | float | bool) else _describe(key)


def _describe(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text.encode(errors="backslashreplace").decode()

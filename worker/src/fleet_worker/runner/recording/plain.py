"""Converts the values of tasks to JSON that every reader of a snapshot can parse."""

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

import orjson
from pydantic import BaseModel
from pydantic_core import from_json

from fleet_kit.logs.json_values import MAX_DEPTH, describe, make_plain

# The value is nested in records, and those in a snapshot.
_LEVELS_AROUND = 8


def json_safe(value: Any) -> Any:
    """The value itself if JSON can represent it, else the nearest form that JSON can."""
    if value is None or isinstance(value, bool):
        return value
    try:
        data = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        try:
            data = orjson.dumps(value, default=json_form, option=orjson.OPT_NON_STR_KEYS)
        except TypeError:
            # Integers beyond 64 bits, lone surrogates, unusual keys, values that contain themselves.
            return make_plain(value, form=json_form)
        value = orjson.loads(data)
    return value if _can_be_read(data) else make_plain(value, form=json_form)


def json_form(value: Any) -> Any:
    """A simpler form of a value that is not JSON: it may have to be simplified in turn."""
    match value:
        case BaseModel():
            try:
                return value.model_dump()
            except Exception:  # noqa: BLE001 - serializers of the model's own may raise anything
                return dict(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal() | UUID() | PurePath() | complex():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return _text(bytes(value))
        case BaseException():
            return f"{type(value).__name__}: {describe(value, str)}"
        case Mapping():
            return dict(value)
        case float():
            return float(value)
        case Sequence() | AbstractSet():
            return list(value)
    if is_numpy(value):
        return value.tolist()
    fields = fields_of(value)
    return fields if fields is not None else f"<{_type(value)}: it has no JSON form>"


def is_numpy(value: Any) -> bool:
    """Whether the value is a scalar or an array of numpy, which flows may have and the worker has not."""
    return type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist")


def fields_of(value: Any) -> Mapping[str, Any] | None:
    """The fields of a pydantic model or a dataclass; None if it is neither."""
    if isinstance(value, BaseModel):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return None


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


def _type(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _can_be_read(data: bytes) -> bool:
    """Whether its nesting can be parsed: readers of a snapshot accept 200 levels, and more can be written."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return True
    try:
        from_json(b"[" * _LEVELS_AROUND + data + b"]" * _LEVELS_AROUND)
    except ValueError:
        return False
    return True

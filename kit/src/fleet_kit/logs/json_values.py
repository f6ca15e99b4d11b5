"""Log lines as JSON; converts any value to JSON types."""

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import orjson

MAX_DEPTH = 32
_MAX_INTEGER = 2**63
# DEL and C1 controls: JSON allows them, but a terminal that shows the line executes them. In UTF-8 those above 0x7F
# begin with 0xC2.
_ESCAPED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def json_line(line: dict[str, Any]) -> str:
    try:
        data = orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # Lone surrogates, integers beyond 64 bits, objects whose `__str__` raises.
        data = orjson.dumps(make_plain(line))
    text = data.decode()
    return text.translate(_ESCAPED) if b"\x7f" in data or b"\xc2" in data else text


def make_plain(value: Any, depth: int = 0, form: Callable[[Any], Any] | None = None) -> Any:
    """A copy made of None, bool, int, float, str, list and dict with str keys only.

    Another value is replaced by its `form`, which is made plain in turn, or without one by its repr.
    """
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _encodable(str(value))
    if isinstance(value, int):
        return int(value) if -_MAX_INTEGER <= value < _MAX_INTEGER else str(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth < MAX_DEPTH:
        if isinstance(value, Mapping):
            return {_key(key, form): make_plain(item, depth + 1, form) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [make_plain(item, depth + 1, form) for item in value]
        if form is not None:
            return make_plain(form(value), depth + 1, form)
    return describe(value)


def describe(value: Any, by: Callable[[Any], str] = repr) -> str:
    """The repr of a value, or another text `by` a function; encodable, and never raises."""
    try:
        text = by(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        text = f"<{type(value).__name__} whose {by.__name__} raised {type(error).__name__}>"
    return _encodable(text)


def _key(key: Any, form: Callable[[Any], Any] | None) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str | int | float | bool):
        return str(make_plain(key))
    simpler = form(key) if form is not None else None
    return _encodable(simpler) if isinstance(simpler, str) else describe(key)


def _encodable(text: str) -> str:
    """Escape lone surrogates."""
    return text.encode(errors="backslashreplace").decode()

"""Keeps answers short enough for the context of a language model, and says how to read on."""

import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

ANSWER_CHARS = 20_000
_TEXT_CHARS = 600
_SHORTEST_TEXT_CHARS = 75
_LINE_CHARS = 1_000
LOG_LINES = 200


def shortened(value: Any, most: int = _TEXT_CHARS) -> Any:
    """The same with long texts cut: for lists, whose items can be read in full one by one."""
    if isinstance(value, str):
        return value if len(value) <= most else f"{value[:most]}… ({len(value)} characters)"
    if isinstance(value, dict):
        return {name: shortened(one, most) for name, one in value.items()}
    if isinstance(value, list):
        return [shortened(one, most) for one in value]
    return value


def fitting(value: Any, most: int = _TEXT_CHARS) -> Any:
    """The same with long texts cut, the shorter the more of them there are."""
    shown = shortened(value, most)
    while most > _SHORTEST_TEXT_CHARS and len(json.dumps(shown, ensure_ascii=False)) > ANSWER_CHARS:
        most //= 2
        shown = shortened(value, most)
    return shown


def page(value: Any, offset: int) -> Any:
    """The value itself, or from `offset` a part of its JSON text if it is large."""
    text = json.dumps(value, ensure_ascii=False)
    if offset == 0 and len(text) <= ANSWER_CHARS:
        return value
    end = offset + ANSWER_CHARS
    part: dict[str, Any] = {"json_text": text[offset:end], "offset": offset, "total_chars": len(text)}
    if end < len(text):
        part["next_offset"] = end
        part["hint"] = f"This is a part of the JSON text. Call again with offset={end} to read on."
    return part


async def lines_of(chunks: AsyncIterator[bytes], first: int | None) -> dict[str, Any]:
    """Lines of a text from line `first` on, counted from 1, or its last lines; it is never held as a whole."""
    kept: deque[str] = deque(maxlen=LOG_LINES if first is None else None)
    count, chars = 0, 0
    async for line in _lines(chunks):
        count += 1
        if first is None:
            kept.append(line)
        elif count >= first and len(kept) < LOG_LINES and chars < ANSWER_CHARS:
            kept.append(line)
            chars += len(line)
    while first is None and sum(map(len, kept)) > ANSWER_CHARS:
        kept.popleft()
    begin = count - len(kept) + 1 if first is None else first
    end = begin + len(kept) - 1
    answer: dict[str, Any] = {"text": "\n".join(kept), "first_line": begin, "last_line": end, "total_lines": count}
    hints = []
    if begin > 1 and kept:
        hints.append(f"Lines 1 to {begin - 1} come before: from_line=1 begins there.")
    if end < count:
        hints.append(f"Call again with from_line={end + 1} to read on.")
    return answer | ({"hint": " ".join(hints)} if hints else {})


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield _text(line)
        # The rest of a very long line is not shown anyway.
        rest = rest[: 4 * _LINE_CHARS]
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    text = line[: 4 * _LINE_CHARS].decode("utf-8", "replace")
    return text if len(text) <= _LINE_CHARS else f"{text[:_LINE_CHARS]}… (a long line, cut here)"

"""JSON bodies: what is refused before it is parsed or validated, and with how many words."""

import json
import threading
from typing import Annotated, Any

import pytest
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BeforeValidator, Field
from starlette.types import Message

from fleet_kit.http import bodies
from fleet_kit.http.bodies import LONGEST_NUMBER, MOST_DIGITS, MOST_VALUES, Body, parse, read

_readers: list[str] = []


def _note_reader(value: Any) -> Any:
    _readers.append(threading.current_thread().name)
    return value


class Cup(Body):
    size: Annotated[int, BeforeValidator(_note_reader)] = 1
    labels: list[str] = Field([], max_length=10)
    saucer: "Cup | None" = None


def refusal(body: bytes) -> str:
    with pytest.raises(RequestValidationError) as caught:
        parse(Cup, body)
    (error,) = caught.value.errors()
    return str(error["msg"])


def numbers(count: int) -> bytes:
    return b"[" + b",".join([b"1"] * count) + b"]"


def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "from_json", None)
    keys = b"{" + b",".join(b'"k%d":1' % n for n in range(MOST_VALUES + 1)) + b"}"
    nested = b"[" + b",".join([b"[" * 100 + b"]" * 100] * 1000) + b"]"
    for body in (keys, nested, numbers(MOST_VALUES + 1)):
        assert refusal(body) == "more than 100,000 values; send fewer at a time"


def test_numbers_that_are_expensive_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    long, many = b"7" * (LONGEST_NUMBER + 1), [b"7" * LONGEST_NUMBER] * (MOST_DIGITS // LONGEST_NUMBER + 1)
    # The second so that the number lies across a boundary between windows.
    costly = (b'{"size":' + long + b"}", b" " * (64 * 1024 - 60) + long, b"[" + b",".join(many) + b"]")
    with monkeypatch.context() as patch:
        patch.setattr(bodies, "from_json", None)
        said = [refusal(body) for body in costly]
    assert said == ["a number of more than 100 digits; send it as text"] * 2 + [
        "more than 2,000,000 digits in numbers; send fewer at a time"
    ]
    assert parse(Cup, b'{"size": %d}' % 2**80).size == 2**80


@pytest.mark.parametrize("text", [",", "{[", '",', "\\,", '\\",', '\\\\",', "x,\\", "7" * 30])
def test_what_is_in_texts_is_neither_a_value_nor_a_number(text: str) -> None:
    # Of a length that puts every boundary between windows somewhere else in the text.
    for odd in range(7):
        label = "y" * odd + text * (MOST_VALUES + 10)
        assert parse(Cup, json.dumps({"labels": [label]}).encode()).labels == [label]


def test_unknown_keys_are_one_fault_that_names_a_few_of_them() -> None:
    assert refusal(b'{"sise": 1}') == 'unknown key "sise" (did you mean "size"?); known: labels, saucer, size'
    said = refusal(b'{"s\\u009b2J": 1, "\\u007f": 2}')
    assert said.startswith(r'unknown keys "s\x9b2J", "\x7f"; known: ')
    many = b"{" + b",".join(b'"%s%d":1' % (b"k" * 500, n) for n in range(5000)) + b"}"
    said = refusal(b'{"saucer":' + many + b"}")
    assert "and 4,995 more" in said
    assert len(said) < 1000


def test_what_is_nested_too_deeply_is_refused() -> None:
    assert "recursion limit" in refusal(b'{"saucer":' * 500 + b"1" + b"}" * 500)


async def test_a_large_body_is_read_beside_the_event_loop() -> None:
    _readers.clear()
    for body in (b'{"size": 7}', b'{"size": 7' + b" " * 100_000 + b"}"):
        assert (await read(Cup, _request(body))).size == 7
    here = threading.current_thread().name
    assert (_readers[0] == here, _readers[1] == here) == (True, False)


def _request(body: bytes) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)

"""The text format is for people: short, aligned, with what distinguishes one run from another."""

import io
from typing import Any

import pytest

from fleet_kit.logs.text import is_coloured, text_line

LINE: dict[str, Any] = {
    "ts": "2026-01-01T10:20:30.456+00:00",
    "level": "INFO",
    "message": "hello",
    "event": "log",
    "component": "worker.execution",
    "status": "completed",
    "duration_ms": 0,
    "request_id": "",
}
FAILURE = {"exc_type": "ValueError", "exc_message": "no luck", "exc_origin": "a.py:1 in f"}


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "10:20:30.456 INFO    worker.execution       hello"),
        (
            {"run_id": "019a8c1e-58a7-7f2e-9a39-6a0d5f7f5f10", "flow_name": "greet", "duration_ms": 12},
            "10:20:30.456 INFO    worker.execution       hello 12 ms run=…5f7f5f10 flow=greet",
        ),
        (
            {"event": "request", "request_id": "q1"},
            "10:20:30.456 INFO    worker.execution       hello 0 ms request=q1",
        ),
        ({"message": "two\nlines"}, "10:20:30.456 INFO    worker.execution       two lines"),
        (
            {"level": "ERROR", "err_id": "ERR-PYOCO-0007", **FAILURE},
            "10:20:30.456 ERROR   worker.execution       hello ERR-PYOCO-0007\n    ValueError: no luck (a.py:1 in f)",
        ),
        (
            {**FAILURE, "exc_traceback": "Traceback:\n  here\n"},
            "10:20:30.456 INFO    worker.execution       hello\n    Traceback:\n      here",
        ),
    ],
)
def test_a_line_for_people(changes: dict[str, Any], shown: str) -> None:
    assert text_line({**LINE, **changes}, coloured=False) == shown


ESCAPE, CLEAR, BELL = "\x1b[2J", "\x9b2J", "\x07"


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"message": f"GET /{ESCAPE}{CLEAR}\x7f\r\t"}, r"GET /\x1b[2J\x9b2J\x7f\x0d\x09"),
        ({"message": "a\x85b\u2028c\nd"}, "a\\x85b\u2028c d"),
        ({"component": f"a{BELL}"}, r"a\x07"),
        (
            {"run_id": f"r{BELL}", "flow_name": f"f{ESCAPE}", "request_id": f"q{BELL}\nr"},
            r"run=r\x07 flow=f\x1b[2J request=q\x07 r",
        ),
        ({"worker_id": f"w{ESCAPE}", "err_id": f"e{BELL}"}, r"worker=w\x1b[2J e\x07"),
        ({**FAILURE, "exc_message": f"no {ESCAPE}luck"}, r"ValueError: no \x1b[2Jluck"),
        ({**FAILURE, "exc_traceback": f"a\n{ESCAPE}b\x0cc\n"}, "\n    a\n    \\x1b[2Jb\\x0cc"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_instead(changes: dict[str, Any], shown: str) -> None:
    shown_line = text_line({**LINE, **changes}, coloured=False)
    assert shown in shown_line
    assert not [char for char in shown_line if char != "\n" and (char < " " or "\x7f" <= char <= "\x9f")]


def test_colours_are_added_and_nothing_else() -> None:
    coloured = text_line({**LINE, "run_id": "r1"}, coloured=True)
    assert "\x1b[32mINFO" in coloured
    for code in ("\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == text_line({**LINE, "run_id": "r1"}, coloured=False)


def test_only_a_terminal_of_somebody_who_likes_it_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert is_coloured(Terminal())
    assert not is_coloured(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_coloured(Terminal())

"""Log lines for people: time, level, component, message; then the duration and a few ids."""

import os
from datetime import datetime
from typing import Any, TextIO

from fleet_contracts.log_events import SERVICE_WORKER, LogEvent

_LEVELS = {
    "DEBUG": "\x1b[2m",
    "INFO": "\x1b[32m",
    "WARNING": "\x1b[33m",
    "ERROR": "\x1b[31m",
    "CRITICAL": "\x1b[1;31m",
}
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
_COMPONENT_WIDTH = 22
_SHORT_ID = 8
# Events that show their duration even below a millisecond.
_TIMED = {LogEvent.REQUEST, LogEvent.SERVICE_CALL, LogEvent.WORKER_JOB, LogEvent.INTEGRATION_CALL}
# C0 without the newline, DEL and C1: a line contains text of callers, and a terminal executes these characters.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x0A}
_ABOUT = {"run_id": "run", "flow_name": "flow", "worker_id": "worker", "request_id": "request"}


def is_coloured(stream: TextIO) -> bool:
    """Whether to use colours: on a terminal, unless NO_COLOR is set (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def visible(text: str) -> str:
    """Escape control characters and lone surrogates; newlines stay."""
    return text.translate(_VISIBLE).encode(errors="backslashreplace").decode()


def text_line(line: dict[str, Any], *, coloured: bool) -> str:
    """One line, and below it the exception if there is one."""

    def paint(colour: str, text: str) -> str:
        text = visible(text)
        return f"{colour}{text}{_PLAIN}" if coloured and colour and text else text

    level = str(line["level"])
    moment = datetime.fromisoformat(line["ts"]).astimezone().strftime("%H:%M:%S.%f")[:-3]
    parts = [
        paint(_DIM, moment),
        paint(_LEVELS.get(level, ""), f"{level:<7}"),
        paint(_BOLD, f"{line['component']:<{_COMPONENT_WIDTH}}"),
        paint(_LEVELS[level] if level in ("ERROR", "CRITICAL") else "", _in_one_line(str(line["message"]))),
        paint(_DIM, _in_one_line(_about(line))),
    ]
    text = " ".join(part for part in parts if part)
    if "exc_traceback" in line:
        text += "\n" + paint(_DIM, _indented(line["exc_traceback"]))
    elif "exc_type" in line:
        text += "\n" + paint(_DIM, _indented(f"{line['exc_type']}: {line['exc_message']} ({line['exc_origin']})"))
    return text


def _about(line: dict[str, Any]) -> str:
    words = []
    if line["duration_ms"] or (line["event"] in _TIMED and line["status"] != "in_progress"):
        words.append(_duration(line["duration_ms"]))
    for name, short in _ABOUT.items():
        if name == "worker_id" and line.get("service") == SERVICE_WORKER:
            continue  # the worker's own id
        if value := line.get(name):
            words.append(f"{short}={_shortened(str(value)) if name in ('run_id', 'request_id') else value}")
    if err_id := line.get("err_id"):
        words.append(err_id)
    return " ".join(words)


def _duration(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


def _shortened(identifier: str) -> str:
    """The last characters: run ids begin with the time, which runs of the same minute share."""
    return identifier if len(identifier) <= 2 * _SHORT_ID else f"…{identifier[-_SHORT_ID:]}"


def _in_one_line(text: str) -> str:
    return text.replace("\n", " ")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().split("\n"))

"""Reads the logs of the parts: last lines, and new lines across rotation and restarts."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fleet_kit.logs.text import text_line, visible

from ..data_dir.folder import DataFolder
from ..errors import LaunchError
from .times import times_of

_TAIL_BYTES = 256 * 1024
_POLL_SECONDS = 0.2
_SHOWN_CHARACTERS = 500


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines that are not empty; none when there is no log."""
    try:
        with log.open("rb") as source:
            return _last_lines(source, count) if count else []
    except OSError:
        return []


def _last_lines(source: BinaryIO, count: int) -> list[str]:
    end = source.seek(0, os.SEEK_END)
    tail_bytes = _TAIL_BYTES
    while True:
        start = source.seek(max(0, end - tail_bytes))
        text = source.read(end - start).decode(errors="replace")
        lines = text.split("\n")
        # Unless it begins with the file, the first line of the tail may have lost its beginning.
        found = [line for line in lines[1 if start else 0 :] if line.strip()]
        if len(found) >= count or start == 0:
            return found[-count:]
        tail_bytes *= 4


def last_line(log: Path) -> str:
    lines = last_lines(log, 1)
    return readable(lines[0]) if lines else "(empty)"


def readable(line: str) -> str:
    """A short form of a log line: of a JSON line its level, message and exception."""
    try:
        fields = json.loads(line)
        text = f"{fields['level']} {fields['message']}"
        if "exc_type" in fields:
            text += f" ({fields['exc_type']}: {fields.get('exc_message', '')})"
    except (ValueError, KeyError, TypeError):
        text = line
    text = visible(text)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " …"


def for_people(part: str, line: str, *, coloured: bool) -> str:
    """A line of a part's log in the text format; a line that is not JSON is shown as it is."""
    try:
        fields = json.loads(line)
        # Every worker logs the component `worker`: put the part's name in its place.
        fields["component"] = ".".join((part, *fields["component"].split(".")[1:]))
        return text_line(fields, coloured=coloured)
    except (ValueError, KeyError, TypeError):
        return f"{part} | {visible(line)}"


def in_order_of_time(said: Mapping[Path, list[str]]) -> list[tuple[str, str]]:
    """The lines of each log, merged by time, each with the name of its part."""
    timed = [
        (at, log.stem, line)
        for log, lines in said.items()
        for at, line in zip(times_of(lines, before=_written_at(log)), lines, strict=True)
    ]
    # The sort is stable: lines of equal time keep their order (tracebacks, logs without timestamps).
    return [(name, line) for _, name, line in sorted(timed, key=lambda line: line[0])]


def logs_of(folder: DataFolder, part: str | None) -> list[Path]:
    """The logs of all parts or of one; LaunchError, with the known parts, if there is none of that name."""
    found = sorted(folder.logs.glob("*.log"))
    if part is None:
        return found
    if (log := folder.log(part)) not in found:
        parts = ", ".join(other.stem for other in found)
        known = f"the parts are {parts}" if parts else f"no stack has run in {folder.path} yet"
        raise LaunchError(f"there is no log of a part '{part}'; {known}")
    return [log]


def follow(folder: DataFolder, part: str | None) -> Iterator[tuple[str, str]]:
    """Yield new lines with the part's name as they are written, without end."""
    tails = {log: Tail.at_end(log) for log in logs_of(folder, part)}
    return _new_lines(folder, part, tails)


def _new_lines(folder: DataFolder, part: str | None, tails: dict[Path, "Tail"]) -> Iterator[tuple[str, str]]:
    while True:
        # Listed at each poll: a new part has a log by now, and a log that is being rotated may be missing.
        logs = [folder.log(part)] if part else sorted(folder.logs.glob("*.log"))
        yield from in_order_of_time({log: tails.setdefault(log, Tail(log)).new_lines() for log in logs})
        time.sleep(_POLL_SECONDS)


def _written_at(log: Path) -> float:
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0


@dataclass(slots=True)
class Tail:
    log: Path
    position: int = 0
    inode: int | None = None
    unfinished: bytes = b""

    @classmethod
    def at_end(cls, log: Path) -> "Tail":
        try:
            status = log.stat()
        except FileNotFoundError:
            return cls(log)
        return cls(log, position=status.st_size, inode=status.st_ino)

    def new_lines(self) -> list[str]:
        try:
            with self.log.open("rb") as source:
                status = self.log.stat()
                if status.st_ino != self.inode or status.st_size < self.position:
                    # Rotated or truncated: read the new file from its start.
                    self.position, self.inode, self.unfinished = 0, status.st_ino, b""
                source.seek(self.position)
                data = source.read()
        except FileNotFoundError:
            return []
        self.position += len(data)
        *lines, self.unfinished = (self.unfinished + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

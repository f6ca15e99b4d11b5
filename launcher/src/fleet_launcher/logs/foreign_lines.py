"""Converts stderr lines of the parts that are not JSON (mostly NATS and nginx) into lines of the log contract."""

import asyncio
import contextlib
import logging
import os
import re
from pathlib import Path

from fleet_contracts.log_events import SERVICE_HTTP, SERVICE_LAUNCHER, SERVICE_WORKER, LogEvent
from fleet_kit.logs.masking import without_secrets
from fleet_kit.logs.setup import LineFormatter
from fleet_kit.settings import FleetSettings

_MAX_LINE_BYTES = 16 * 1024
_END_SECONDS = 1.0

# [3021] 2026/11/16 13:40:30.123456 [INF] Server is ready
_NATS = re.compile(r"\[\d+\] [\d/]+ [\d:.]+ \[(?P<level>[A-Z]{3})\] ?(?P<message>.*)", re.DOTALL)
# 2026/11/16 13:40:30 [warn] 3021#3021: *7 upstream is away; or "nginx: [emerg] …" before it has a log
_NGINX = re.compile(r"(?:[\d/]+ [\d:]+|nginx:) \[(?P<level>[a-z]+)\] (?:\d+#\d+: )?(?P<message>.*)", re.DOTALL)
_LEVELS = {
    **{"TRC": logging.DEBUG, "DBG": logging.DEBUG, "INF": logging.INFO, "WRN": logging.WARNING},
    **{"ERR": logging.ERROR, "FTL": logging.CRITICAL},
    **{"debug": logging.DEBUG, "info": logging.INFO, "notice": logging.INFO, "warn": logging.WARNING},
    **{"error": logging.ERROR, "crit": logging.CRITICAL, "alert": logging.CRITICAL, "emerg": logging.CRITICAL},
}
# nginx's lines quote request URLs; their queries are left out, as in the access log.
_QUERY = re.compile(r'\?[^ "]*(?=[ "])')


def parse_line(text: str) -> logging.LogRecord:
    if (nats := _NATS.fullmatch(text)) is not None:
        return _record("nats-server", nats["level"], nats["message"])
    if (nginx := _NGINX.fullmatch(text)) is not None:
        return _record("nginx.error", nginx["level"], _QUERY.sub("?…", nginx["message"]))
    # For example an interpreter that failed before logging was set up.
    return _record("stderr", "warn", text)


def _record(program: str, level: str, message: str) -> logging.LogRecord:
    return logging.LogRecord(program, _LEVELS.get(level, logging.INFO), "", 0, "%s", (message,), None, func="")


class ForeignLines(asyncio.Protocol):
    """Reads a part's stderr from a pipe and appends the converted lines to the part's log."""

    def __init__(self, part: str, log: Path, settings: FleetSettings) -> None:
        self._part = part
        self._log = log
        self._as_they_are = settings.log_format == "text"
        self._formatter = LineFormatter(service=_service_of(part), component=part, settings=settings)
        self._rest = b""
        self._ended = asyncio.Event()

    @classmethod
    async def of(cls, part: str, log: Path, settings: FleetSettings) -> tuple["ForeignLines", int]:
        """Also return the write end of the pipe; the caller closes it once the part has inherited it."""
        ours, theirs = os.pipe()
        lines = cls(part, log, settings)
        await asyncio.get_running_loop().connect_read_pipe(lambda: lines, os.fdopen(ours, "rb", buffering=0))
        return lines, theirs

    async def end(self) -> None:
        """Wait until the last line is written, but not for long: another process may still hold the pipe."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            return

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        self._write(lines)

    def connection_lost(self, exc: Exception | None) -> None:
        self._write([self._rest])
        self._ended.set()

    def _write(self, lines: list[bytes]) -> None:
        written = [line for line in map(self._line, lines) if line is not None]
        if not written:
            return
        # Opened for each write, so that no rotated log is held open. On a full disk the lines are lost.
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write("".join(f"{line}\n" for line in written))

    def _line(self, data: bytes) -> str | None:
        text = data.decode(errors="replace").rstrip()
        if not text or self._as_they_are:
            return without_secrets(text) or None
        record = parse_line(text)
        if not record.getMessage():
            return None  # the banner of NATS
        record.__dict__.update(event=LogEvent.FOREIGN_LINE, component=self._part)
        return self._formatter.format(record)


def _service_of(part: str) -> str:
    if part == "nats":
        return SERVICE_LAUNCHER
    return SERVICE_WORKER if part.startswith("worker-") else SERVICE_HTTP

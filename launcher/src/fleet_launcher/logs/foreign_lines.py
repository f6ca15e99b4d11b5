"""What the parts say besides their JSON lines, NATS and nginx above all: each becomes a line of the contract."""

import asyncio
import contextlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from fleet_contracts.log_events import SERVICE_HTTP, SERVICE_LAUNCHER, SERVICE_WORKER, LogEvent
from fleet_kit.logs.masking import without_secrets
from fleet_kit.logs.setup import JsonFormatter
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
# What a caller asked for is in nginx's lines; the access log leaves out queries as well.
_QUERY = re.compile(r'\?[^ "]*(?=[ "])')


@dataclass(frozen=True, slots=True)
class ForeignLine:
    level: int
    program: str
    message: str


def understand(text: str) -> ForeignLine:
    if (nats := _NATS.fullmatch(text)) is not None:
        return ForeignLine(_LEVELS.get(nats["level"], logging.INFO), "nats-server", nats["message"])
    if (nginx := _NGINX.fullmatch(text)) is not None:
        message = _QUERY.sub("?…", nginx["message"])
        return ForeignLine(_LEVELS.get(nginx["level"], logging.INFO), "nginx.error", message)
    # An interpreter that could not even begin to log.
    return ForeignLine(logging.WARNING, "stderr", text)


class ForeignLines(asyncio.Protocol):
    """Reads the pipe that is a part's stderr, and appends to the part's log."""

    def __init__(self, part: str, log: Path, settings: FleetSettings) -> None:
        self._part = part
        self._log = log
        self._as_they_are = settings.log_format == "text"
        self._formatter = JsonFormatter(service=_service_of(part), component=part, settings=settings)
        self._rest = b""
        self._ended = asyncio.Event()

    @classmethod
    async def of(cls, part: str, log: Path, settings: FleetSettings) -> tuple["ForeignLines", int]:
        """And the end of the pipe that the part writes to: close it when the part has it."""
        ours, theirs = os.pipe()
        lines = cls(part, log, settings)
        await asyncio.get_running_loop().connect_read_pipe(lambda: lines, os.fdopen(ours, "rb", buffering=0))
        return lines, theirs

    async def end(self) -> None:
        """Until the last line is written; somebody else may still hold the pipe."""
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
        # Opened each time: nothing of the launcher keeps a log alive that was put aside. A full disk costs the lines.
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write("".join(f"{line}\n" for line in written))

    def _line(self, data: bytes) -> str | None:
        text = data.decode(errors="replace").rstrip()
        if not text or self._as_they_are:
            return without_secrets(text) or None
        line = understand(text)
        if not line.message:
            return None  # NATS paints its name
        return self._formatter.format(
            logging.makeLogRecord(
                {
                    "name": line.program,
                    "levelno": line.level,
                    "levelname": logging.getLevelName(line.level),
                    "msg": "%s",
                    "args": (line.message,),
                    "pathname": "",
                    "funcName": "",
                    "event": LogEvent.FOREIGN_LINE,
                    "component": self._part,
                }
            )
        )


def _service_of(part: str) -> str:
    if part == "nats":
        return SERVICE_LAUNCHER
    return SERVICE_WORKER if part.startswith("worker") else SERVICE_HTTP

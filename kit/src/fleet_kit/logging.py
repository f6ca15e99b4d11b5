"""JSON Lines logging with the required fields of both seed documents, and a text format for terminals."""

import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson

from fleet_contracts.problems import Problem

from .settings import FleetSettings

# What the current request or job is about; every line logged meanwhile carries it.
_context: ContextVar[dict[str, Any] | None] = ContextVar("fleet_log_context", default=None)

_CONTRACT_FIELDS = ("event", "status", "duration_ms", "entity_id", "request_id", "meta")
_SPEC_FIELDS = ("run_id", "flow_name", "tag", "worker_id", "err_id", "msg_id", "reason")
# An exception of another process is told by these; one of this process by `exc_info`.
_EXCEPTION_FIELDS = ("exc_type", "exc_message", "exc_origin", "exc_traceback")
_EXTRA_FIELDS = frozenset((*_CONTRACT_FIELDS, *_SPEC_FIELDS, *_EXCEPTION_FIELDS, "component"))


@contextmanager
def log_context(**fields: Any) -> Iterator[None]:
    """Add fields to every line logged inside the block."""
    token = _context.set({**(_context.get() or {}), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def problem_fields(problem: Problem) -> dict[str, str]:
    """The ids of a problem, for `extra=` of a log call."""
    return {"err_id": problem.err_id, "msg_id": problem.msg_id}


class _Formatter(logging.Formatter):
    def __init__(self, *, service: str, component: str, settings: FleetSettings) -> None:
        super().__init__()
        self._service = service
        self._component = component
        self._utc = settings.log_utc
        self._include_traceback = settings.log_include_traceback

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        given = {**(_context.get() or {}), **{k: v for k, v in record.__dict__.items() if k in _EXTRA_FIELDS}}
        line: dict[str, Any] = {
            "ts": self._timestamp(record.created),
            "service": self._service,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pathname": record.pathname,
            "lineno": record.lineno,
            "func": record.funcName,
            "event": given.pop("event", "log"),
            "component": given.pop("component", self._component),
            "status": given.pop(
                "status", "failed" if record.levelno >= logging.ERROR or record.exc_info else "completed"
            ),
            "duration_ms": given.pop("duration_ms", 0),
            "entity_id": given.pop("entity_id", None) or _entity_id(given),
            "request_id": given.pop("request_id", ""),
            "meta": given.pop("meta", {}),
        }
        if not self._include_traceback:
            given.pop("exc_traceback", None)
        line.update({name: value for name, value in given.items() if value is not None})
        if record.exc_info and record.exc_info[1] is not None:
            line.update(self._exception(record.exc_info[1]))
        return line

    def _timestamp(self, created: float) -> str:
        moment = datetime.fromtimestamp(created, UTC)
        return (moment if self._utc else moment.astimezone()).isoformat(timespec="milliseconds")

    def _exception(self, error: BaseException) -> dict[str, Any]:
        frames = traceback.extract_tb(error.__traceback__)
        origin = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
        fields: dict[str, Any] = {
            "exc_type": type(error).__name__,
            "exc_message": str(error),
            "exc_origin": origin,
        }
        if self._include_traceback:
            fields["exc_traceback"] = "".join(traceback.format_exception(error))
        return fields


class JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return orjson.dumps(self.fields(record), default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class TextFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = self.fields(record)
        about = " ".join(
            f"{name}={line[name]}" for name in ("request_id", *_SPEC_FIELDS) if line.get(name) not in (None, "")
        )
        text = f"{line['ts']} {line['level']:<7} {line['component']}: {line['message']}"
        if about:
            text += f"  [{about}]"
        if "exc_traceback" in line:
            text += "\n" + line["exc_traceback"].rstrip()
        elif "exc_type" in line:
            text += f"\n{line['exc_type']}: {line['exc_message']} ({line['exc_origin']})"
        return text


class _BestEffortHandler(logging.StreamHandler[Any]):
    """Logging never breaks the work: a failing output is told once on stderr (ERR-PYOCO-0013)."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - name given by logging
        if not self._told:
            self._told = True
            problem = Problem.LOGGING_FAILED
            sys.__stderr__ and sys.__stderr__.write(f"{problem.err_id} {problem.msg_id} {problem.message}\n")


def configure_logging(*, service: str, component: str, settings: FleetSettings) -> None:
    """Send every logger of this process to stdout in the configured format."""
    formatter_class = JsonFormatter if settings.log_format == "json" else TextFormatter
    handler = _BestEffortHandler(sys.stdout)
    handler.setFormatter(formatter_class(service=service, component=component, settings=settings))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    # Our own request line replaces uvicorn's; the libraries' chatter starts at warnings.
    for name in ("uvicorn.access", "uvicorn.error", "uvicorn", "httpx", "httpcore", "alembic"):
        chatty = logging.getLogger(name)
        chatty.handlers.clear()
        chatty.propagate = name != "uvicorn.access"
        chatty.setLevel(max(root.level, logging.WARNING))


def elapsed_ms(since: float) -> int:
    """Whole milliseconds since a `time.perf_counter()` reading."""
    return int((time.perf_counter() - since) * 1000)


def _entity_id(given: dict[str, Any]) -> str:
    if run_id := given.get("run_id"):
        return f"run:{run_id}"
    if worker_id := given.get("worker_id"):
        return f"worker:{worker_id}"
    return ""

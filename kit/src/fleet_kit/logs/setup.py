"""JSON Lines logging with the required fields of both seed documents; every line of the process goes through it.

structlog would replace the rendering only, and takes longer for a line without these fields: see ADR 13.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fleet_contracts.log_events import LogEvent, LogStatus
from fleet_contracts.problems import Problem

from ..errors import FleetError
from ..settings import FleetSettings
from ..telemetry.tracing import current
from .failures import failure_meta
from .json_values import describe, json_line
from .masking import without_secrets
from .text import is_coloured, text_line

logger = logging.getLogger(__name__)

# Fields of the current request or job, added to every log line.
_context: ContextVar[dict[str, Any] | None] = ContextVar("fleet_log_context", default=None)

_CONTRACT_FIELDS = ("event", "status", "duration_ms", "entity_id", "request_id", "meta")
_SPEC_FIELDS = ("run_id", "flow_name", "tag", "worker_id", "err_id", "msg_id", "reason")
# For an exception of another process; one of this process is passed as `exc_info`.
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


def current_request_id() -> str | None:
    """The id of the request that is being answered, if there is one."""
    return (_context.get() or {}).get("request_id")


def problem_fields(problem: Problem) -> dict[str, str]:
    """The ids of a problem, for `extra=` of a log call."""
    return {"err_id": problem.err_id, "msg_id": problem.msg_id}


def exception_fields(error: BaseException) -> dict[str, str]:
    """An exception without its traceback, for `extra=` of a log call."""
    frames = traceback.extract_tb(error.__traceback__)
    origin = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return {"exc_type": type(error).__name__, "exc_message": describe(error, str), "exc_origin": origin}


def failure_fields(error: BaseException) -> dict[str, Any]:
    """All fields of a failure except its traceback, for `extra=` of a log call."""
    problem = error.problem if isinstance(error, FleetError) else None
    return {
        "status": LogStatus.FAILED,
        "meta": failure_meta(error),
        **exception_fields(error),
        **(problem_fields(problem) if problem is not None else {}),
    }


class LineFormatter(logging.Formatter):
    def __init__(
        self,
        *,
        service: str,
        component: str,
        settings: FleetSettings,
        about: dict[str, str] | None = None,
        render: Callable[[dict[str, Any]], str] = json_line,
    ) -> None:
        super().__init__()
        self._render = render
        self._service = service
        self._component = component
        self._settings = settings
        # Default fields of every line of this process.
        self._about = about or {}

    def format(self, record: logging.LogRecord) -> str:
        """A line of the log contract; a record that cannot be formatted gets a line that reports this."""
        try:
            line = self._render(self.fields(record))
        except Exception as error:  # noqa: BLE001 - logging never breaks the work
            line = self._render(self.fields(_report(error, record)))
        return without_secrets(line)

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        given = {
            **self._about,
            **(_context.get() or {}),
            **{k: v for k, v in record.__dict__.items() if k in _EXTRA_FIELDS},
        }
        error = record.exc_info[1] if record.exc_info else None
        # A line with an err_id is a failure at any level.
        err_id = given.get("err_id")
        is_failure = record.levelno >= logging.ERROR or error is not None or err_id is not None
        status = given.pop("status", None) or (LogStatus.FAILED if is_failure else LogStatus.COMPLETED)
        meta = given.pop("meta", {})
        if (status == LogStatus.FAILED or err_id is not None) and "error_code" not in meta:
            about = given.get("entity_id") or _entity_id(given)
            failure = failure_meta(error, err_id=err_id, exc_type=given.get("exc_type"), resource=about)
            meta = failure | meta
        line: dict[str, Any] = {
            "ts": self._timestamp(record.created),
            "service": self._service,
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            "pathname": record.pathname,
            "lineno": record.lineno,
            "func": record.funcName,
            "event": given.pop("event", LogEvent.LOG),
            "component": given.pop("component", None) or self._component_named(record.name),
            "status": status,
            "duration_ms": given.pop("duration_ms", 0),
            "entity_id": given.pop("entity_id", None) or _entity_id(given),
            "request_id": given.pop("request_id", None) or "",
            "meta": meta,
        }
        if (trace := current()) is not None:
            line["trace_id"], line["span_id"] = trace.trace_id, trace.span_id
        if not self._settings.log_include_traceback:
            given.pop("exc_traceback", None)
        line.update({name: value for name, value in given.items() if value is not None})
        if error is not None:
            line.update(exception_fields(error))
            if self._settings.log_include_traceback:
                line["exc_traceback"] = "".join(traceback.format_exception(error))
        return line

    def _component_named(self, logger_name: str) -> str:
        """`fleet_runs_api.dead_letters.arrivals` in the process runs-api is `runs-api.dead_letters.arrivals`."""
        package, _, module = logger_name.partition(".")
        inside = module if package.startswith("fleet_") else package if package != "root" else ""
        return ".".join(filter(None, (self._component, inside)))

    def _timestamp(self, created: float) -> str:
        moment = datetime.fromtimestamp(created, UTC)
        return (moment if self._settings.log_utc else moment.astimezone()).isoformat(timespec="milliseconds")


class _BestEffortHandler(logging.StreamHandler[Any]):
    """A log handler that never raises: a failing output is reported once, in a line on stderr (ERR-PYOCO-0013)."""

    _reported = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - name given by logging
        error = sys.exc_info()[1]
        if self._reported or error is None or sys.__stderr__ is None:
            return
        self._reported = True
        # stderr may be on the same full disk as stdout; then the report is dropped.
        with suppress(OSError, ValueError):
            sys.__stderr__.write(f"{self.format(_report(error, record))}\n")


def configure_logging(*, service: str, component: str, settings: FleetSettings, **about: str) -> None:
    """Send every logger and every uncaught exception to stdout, in the configured format.

    `about` holds default fields of every line, `worker_id` for example.
    """
    render = json_line if settings.log_format == "json" else partial(text_line, coloured=is_coloured(sys.stdout))
    handler = _BestEffortHandler(sys.stdout)
    handler.setFormatter(
        LineFormatter(service=service, component=component, settings=settings, about=about, render=render)
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    # Our own request line replaces uvicorn's; the libraries log from WARNING on.
    for name in ("uvicorn.access", "uvicorn.error", "uvicorn", "httpx", "httpcore", "alembic"):
        chatty = logging.getLogger(name)
        chatty.handlers.clear()
        chatty.propagate = name != "uvicorn.access"
        chatty.setLevel(max(root.level, logging.WARNING))
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_uncaught_in_thread


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if not isinstance(error, KeyboardInterrupt):
        logger.critical("the process ends: nobody has caught this", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread else "?"
        trace = args.exc_traceback
        logger.error("thread %s ended: nobody has caught this", name, exc_info=(args.exc_type, args.exc_value, trace))


def _log_unraisable(args: "sys.UnraisableHookArgs") -> None:
    if args.exc_value is not None:
        trace = args.exc_traceback
        logger.error("an exception could not be raised", exc_info=(args.exc_type, args.exc_value, trace))


def elapsed_ms(since: float) -> int:
    """Whole milliseconds since a `time.perf_counter()` reading."""
    return int((time.perf_counter() - since) * 1000)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit, or whose __str__ raises
        return f"{describe(record.msg)} with {describe(record.args)}"


def _report(error: BaseException, lost: logging.LogRecord) -> logging.LogRecord:
    """The replacement of a record that cannot be written; it names the source of that record."""
    return logging.makeLogRecord(
        {
            "name": lost.name,
            "levelno": logging.ERROR,
            "levelname": logging.getLevelName(logging.ERROR),
            "pathname": lost.pathname,
            "lineno": lost.lineno,
            "funcName": lost.funcName,
            "msg": "%s: a line is lost",
            "args": (Problem.LOGGING_FAILED.message,),
            "event": LogEvent.LOG,
            "status": LogStatus.FAILED,
            "duration_ms": 0,
            "meta": {},
            **exception_fields(error),
            **problem_fields(Problem.LOGGING_FAILED),
        }
    )


def _entity_id(given: dict[str, Any]) -> str:
    if run_id := given.get("run_id"):
        return f"run:{run_id}"
    if worker_id := given.get("worker_id"):
        return f"worker:{worker_id}"
    return ""

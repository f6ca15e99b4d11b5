"""The log contract of all processes: the fields of a line, its event types, the required meta of each.

`python -m fleet_contracts.log_events` prints the JSON Schema of a line, which is kept in observability/.
"""

import json
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

SERVICE_HTTP = "pyoco-server:http"
SERVICE_WORKER = "pyoco-server:worker"
# The launcher itself, and the output of third-party programs that it starts.
SERVICE_LAUNCHER = "pyoco-server:launcher"


class LogStatus(StrEnum):
    RECEIVED = "received"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    TIMEOUT = "timeout"


class LetterMove(StrEnum):
    """The status of a `dlq.transition`."""

    ENTERED = "entered"
    REQUEUED = "requeued"
    DELETED = "deleted"


class ErrorCode(StrEnum):
    """The error taxonomy: four codes of the contracts document, and those that HTTP distinguishes besides."""

    VALIDATION_ERROR = "VALIDATION_ERROR"
    NOT_FOUND = "NOT_FOUND"
    DEPENDENCY_ERROR = "DEPENDENCY_ERROR"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    CONFLICT = "CONFLICT"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    RATE_LIMITED = "RATE_LIMITED"


class LogEvent(StrEnum):
    # A plain sentence without an event type.
    LOG = "log"
    # Events of the contracts document.
    REQUEST = "request"
    SERVICE_CALL = "service.call"
    INTEGRATION_CALL = "integration_call"
    WORKER_JOB = "worker_job"
    WORKER_HEARTBEAT = "worker.heartbeat"
    SCHEDULER = "orchestrator.scheduler"
    DLQ_TRANSITION = "dlq.transition"
    FEATURE_FLAG = "feature_flag"
    # Additions of this project.
    WORKER_STARTED = "worker_started"
    WORKER_STOPPED = "worker_stopped"
    WORKER_DRAINING = "worker_draining"
    WORKER_RESUMED = "worker_resumed"
    WORKER_ID_TAKEN = "worker_id_taken"
    FLOWS_LOADED = "flows_loaded"
    FLOWS_BROKEN = "flows_broken"
    FLOWS_RELOADED = "flows_reloaded"
    FLOWS_RELOAD_FAILED = "flows_reload_failed"
    # The libraries of a flows folder: being installed, installed, failed.
    FLOW_LIBRARIES = "flow_libraries"
    RUNNER_OUTPUT = "runner_output"
    WHEELS_SYNCED = "wheels_synced"
    WHEEL_SYNC_FAILED = "wheel_sync_failed"
    WHEEL_SYNC_RECOVERED = "wheel_sync_recovered"
    # A state change of a part of the launcher, and a line of a program that writes no JSON.
    PART_CHANGED = "part_changed"
    FOREIGN_LINE = "foreign_line"


_TEXT, _NUMBER, _ANY = {"type": "string"}, {"type": "integer", "minimum": 0}, True
_NON_EMPTY = {"type": "string", "minLength": 1}
_FAILURES = [LogStatus.FAILED.value, LogStatus.TIMEOUT.value]

# The value of a required field that is not known: the gateway cannot look into a service, for example.
UNKNOWN = "unknown"

# Required fields of `meta` by event; other events have none.
REQUIRED_META: Mapping[LogEvent, Mapping[str, Any]] = {
    LogEvent.REQUEST: {"method": _TEXT, "path": _TEXT, "status_code": _NUMBER},
    LogEvent.SERVICE_CALL: {"service": _TEXT, "operation": _TEXT},
    LogEvent.INTEGRATION_CALL: {"provider": _TEXT, "operation": _TEXT, "attempt": _NUMBER, "timeout_ms": _NUMBER},
    LogEvent.WORKER_JOB: {"job_type": _TEXT, "attempt": _NUMBER, "queue": _TEXT},
    LogEvent.WORKER_HEARTBEAT: {"job_type": _TEXT, "lease_id": _TEXT, "visibility_timeout_ms": _NUMBER},
    LogEvent.SCHEDULER: {"queue": _TEXT, "priority": _NUMBER, "leased_count": _NUMBER},
    LogEvent.DLQ_TRANSITION: {"job_type": _TEXT, "reason": _TEXT},
    LogEvent.FEATURE_FLAG: {"flag": _TEXT, "value": _ANY, "source": _TEXT},
}
# Required fields of the `meta` of a failure, by its `error_code`.
REQUIRED_OF_FAILURES: Mapping[ErrorCode, Mapping[str, Any]] = {
    # Names of fields, never their values.
    ErrorCode.VALIDATION_ERROR: {"fields": {"type": "array", "items": _TEXT}, "detail": _NON_EMPTY},
    ErrorCode.NOT_FOUND: {"resource": _NON_EMPTY},
    ErrorCode.DEPENDENCY_ERROR: {
        "provider": _TEXT,
        "dependency_status": {"type": ["string", "integer"]},
        "retryable": {"type": "boolean"},
    },
    ErrorCode.INTERNAL_ERROR: {"exception_type": _NON_EMPTY, "retryable": {"const": False}},
}

_REQUIRED: Mapping[str, Any] = {
    # Required by the architecture document.
    "ts": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$"},
    "service": {"enum": [SERVICE_HTTP, SERVICE_WORKER, SERVICE_LAUNCHER]},
    "level": {"enum": ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]},
    "logger": _TEXT,
    "message": _TEXT,
    "pathname": _TEXT,
    "lineno": _NUMBER,
    "func": {"type": ["string", "null"]},
    # The contracts document.
    "event": {"enum": [event.value for event in LogEvent]},
    "component": {"type": "string", "minLength": 1},
    "status": {"enum": [*(status.value for status in LogStatus), *(move.value for move in LetterMove), "updated"]},
    "duration_ms": _NUMBER,
    "entity_id": {"type": "string", "pattern": r"^$|^[a-z_]+:[\s\S]"},
    "request_id": _TEXT,
    "meta": {"type": "object", "properties": {"error_code": {"enum": [code.value for code in ErrorCode]}}},
}
_OPTIONAL: Mapping[str, Any] = {
    "run_id": _TEXT,
    "flow_name": _TEXT,
    "tag": _TEXT,
    "worker_id": _TEXT,
    "err_id": {"type": "string", "pattern": r"^ERR-PYOCO-\d{4}$"},
    "msg_id": {"type": "string", "pattern": r"^MSG-PYOCO-\d{4}$"},
    "reason": _TEXT,
    "exc_type": _TEXT,
    "exc_message": _TEXT,
    "exc_origin": _TEXT,
    "exc_traceback": _TEXT,
    # May be empty: nginx cannot omit a field.
    "trace_id": {"type": "string", "pattern": r"^([0-9a-f]{32})?$"},
    "span_id": {"type": "string", "pattern": r"^[0-9a-f]{16}$"},
}


def log_line_schema() -> dict[str, Any]:
    """The JSON Schema of one line."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of the logs of pyoco-fleet",
        "type": "object",
        "properties": {**_REQUIRED, **_OPTIONAL},
        "required": list(_REQUIRED),
        "additionalProperties": False,
        # A line with an err_id is a failure at any level.
        "dependentSchemas": {
            "err_id": {"properties": {"status": {"enum": _FAILURES}, "meta": {"required": ["error_code"]}}}
        },
        "allOf": [
            _when({"event": {"const": LogEvent.DLQ_TRANSITION}}, {"status": {"enum": list(LetterMove)}}),
            _when({"status": {"enum": list(LetterMove)}}, {"event": {"const": LogEvent.DLQ_TRANSITION}}),
            _when({"status": {"const": "updated"}}, {"event": {"const": LogEvent.FEATURE_FLAG}}),
            _when({"level": {"enum": ["ERROR", "CRITICAL"]}}, {"status": {"enum": _FAILURES}}),
            _when({"status": {"const": LogStatus.FAILED}}, {"meta": {"required": ["error_code"]}}),
            *(_when({"event": {"const": event}}, {"meta": _having(meta)}) for event, meta in REQUIRED_META.items()),
            *(
                _when(
                    {"meta": {"properties": {"error_code": {"const": code}}, "required": ["error_code"]}},
                    {"meta": _having(meta)},
                )
                for code, meta in REQUIRED_OF_FAILURES.items()
            ),
        ],
    }


def _when(these: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    return {"if": {"properties": dict(these)}, "then": {"properties": dict(then)}}


def _having(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {"properties": dict(meta), "required": list(meta)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(log_line_schema(), indent=2) + "\n")

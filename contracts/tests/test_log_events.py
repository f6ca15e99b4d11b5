"""The schema of a log line is kept in a file, and refuses a line with too few fields."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from fleet_contracts.log_events import REQUIRED_META, LogEvent, log_line_schema

FILE = Path(__file__).parents[2] / "observability/log-line.schema.json"
VALIDATOR = jsonschema_rs.validator_for(log_line_schema())

LINE: dict[str, Any] = {
    "ts": "2026-01-01T00:00:00.000+00:00",
    "service": "pyoco-server:http",
    "level": "INFO",
    "logger": "fleet",
    "message": "hello",
    "pathname": "hello.py",
    "lineno": 1,
    "func": "hello",
    "event": "log",
    "component": "runs-api",
    "status": "completed",
    "duration_ms": 0,
    "entity_id": "",
    "request_id": "",
    "meta": {},
}
REQUEST = {"event": "request", "meta": {"method": "GET", "path": "/runs", "status_code": 200}}
FAILED = {"status": "failed", "level": "ERROR"}
NATS_AWAY = {"error_code": "DEPENDENCY_ERROR", "provider": "nats", "dependency_status": "away", "retryable": True}

CRASH = {"error_code": "INTERNAL_ERROR", "exception_type": "KeyError", "retryable": False}


def test_the_file_is_what_the_module_says() -> None:
    how = "./fleet run python -m fleet_contracts.log_events > observability/log-line.schema.json"
    assert json.loads(FILE.read_text()) == log_line_schema(), f"write it anew: {how}"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        REQUEST,
        {"run_id": "r1", "entity_id": "run:r1", "trace_id": "0" * 32, "span_id": "0" * 16},
        {**FAILED, "meta": NATS_AWAY},
        {**FAILED, "meta": CRASH},
        {**FAILED, "meta": {"error_code": "VALIDATION_ERROR", "fields": ["tag"], "detail": "invalid request"}},
        {**FAILED, "meta": {"error_code": "NOT_FOUND", "resource": "/runs/r1"}},
        {**FAILED, "meta": {"error_code": "CONFLICT"}},
        {"err_id": "ERR-PYOCO-0003", "level": "WARNING", "status": "failed", "meta": NATS_AWAY},
        {"err_id": "ERR-PYOCO-0021", "level": "WARNING", "status": "timeout", "meta": CRASH},
        {"event": "dlq.transition", "status": "entered", "meta": {"job_type": "hello", "reason": "invalid_job"}},
        {"event": "feature_flag", "status": "updated", "meta": {"flag": "f", "value": None, "source": "default"}},
    ],
)
def test_a_whole_line_is_valid(changes: dict[str, Any]) -> None:
    VALIDATOR.validate({**LINE, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"ts": "yesterday"},
        {"level": "loud"},
        {"event": "party"},
        {"status": "entered"},
        {"duration_ms": 1.5},
        {"duration_ms": -1},
        {"entity_id": "r1"},
        {"component": ""},
        {"colour": "red"},
        {"meta": None},
        {"level": "ERROR"},
        {"status": "failed"},
        {**FAILED, "meta": {"error_code": "BAD_LUCK"}},
        {**FAILED, "meta": {"error_code": "DEPENDENCY_ERROR", "provider": "nats"}},
        {**FAILED, "meta": {"error_code": "INTERNAL_ERROR"}},
        {**FAILED, "meta": {**CRASH, "retryable": True}},
        {**FAILED, "meta": {**CRASH, "exception_type": None}},
        {**FAILED, "meta": {"error_code": "VALIDATION_ERROR", "fields": ["tag"]}},
        {**FAILED, "meta": {"error_code": "VALIDATION_ERROR", "detail": "invalid request"}},
        {**FAILED, "meta": {"error_code": "VALIDATION_ERROR", "fields": [{"field": "tag"}], "detail": "no"}},
        {**FAILED, "meta": {"error_code": "NOT_FOUND"}},
        {**REQUEST, "status": "failed"},
        {"err_id": "ERR-PYOCO-0003", "level": "WARNING", "meta": NATS_AWAY},
        {"err_id": "ERR-PYOCO-0021", "level": "WARNING", "status": "timeout"},
        {"event": "dlq.transition", "meta": {"job_type": "hello", "reason": "invalid_job"}},
    ],
)
def test_a_line_that_lacks_fields_or_has_wrong_ones_is_not(changes: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid({**LINE, **changes})


@pytest.mark.parametrize("field", list(LINE))
def test_no_required_field_may_be_missing(field: str) -> None:
    assert not VALIDATOR.is_valid({name: value for name, value in LINE.items() if name != field})


@pytest.mark.parametrize(
    ("event", "missing"), [(event, name) for event, meta in REQUIRED_META.items() for name in meta]
)
def test_no_event_may_leave_out_its_meta(event: LogEvent, missing: str) -> None:
    whole = {
        name: "x" if kind is True or kind["type"] == "string" else 1 for name, kind in REQUIRED_META[event].items()
    }
    line = {**LINE, "event": event.value, "status": "entered" if event is LogEvent.DLQ_TRANSITION else "completed"}
    assert VALIDATOR.is_valid({**line, "meta": whole})
    assert not VALIDATOR.is_valid({**line, "meta": {name: v for name, v in whole.items() if name != missing}})

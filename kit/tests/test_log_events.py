"""The events of the contracts table: their fields, and the source that they name."""

import io
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet_contracts.log_events import LetterMove
from fleet_kit.errors import FleetError, NatsUnavailable
from fleet_kit.logs.events import log_dlq_transition, log_feature_flags, log_integration_call, service_call
from fleet_kit.logs.setup import configure_logging
from fleet_kit.settings import FleetSettings
from fleet_testkit.log_check import check_log_lines

logger = logging.getLogger("fleet_test.events")

Written = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    hooks = sys.excepthook, sys.unraisablehook
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    configure_logging(service="pyoco-server:http", component="test", settings=FleetSettings())

    def read() -> list[dict[str, Any]]:
        check_log_lines(output.getvalue().splitlines(), of="stdout")
        return [json.loads(line) for line in output.getvalue().splitlines()]

    yield read
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.excepthook, sys.unraisablehook = hooks


def test_a_use_case_logs_that_it_is_done(written: Written) -> None:
    with service_call(logger, "runs", "submit") as call:
        call["entity_id"] = "run:r1"
        call["runs"] = 3
    [line] = written()
    assert (line["event"], line["status"], line["entity_id"]) == ("service.call", "completed", "run:r1")
    assert line["meta"] == {"service": "runs", "operation": "submit", "runs": 3}
    assert line["func"] == "test_a_use_case_logs_that_it_is_done"


def test_a_use_case_logs_why_it_has_failed(written: Written) -> None:
    with pytest.raises(NatsUnavailable), service_call(logger, "runs", "cancel", entity_id="run:r1"):
        raise NatsUnavailable(reason="refused")
    [line] = written()
    assert (line["status"], line["entity_id"], line["level"]) == ("failed", "run:r1", "INFO")
    assert line["meta"]["error_code"] == "DEPENDENCY_ERROR"


class ShelfNotFound(FleetError):
    """There is no such shelf."""

    status = 404


@pytest.mark.parametrize(("entity_id", "resource"), [("shelf:s1", "shelf:s1"), ("", "runs")])
def test_a_use_case_logs_what_was_not_there(written: Written, entity_id: str, resource: str) -> None:
    with pytest.raises(ShelfNotFound), service_call(logger, "runs", "tidy", entity_id=entity_id):
        raise ShelfNotFound
    [line] = written()
    assert (line["meta"]["error_code"], line["meta"]["resource"]) == ("NOT_FOUND", resource)


def test_a_quiet_use_case_says_nothing(written: Written) -> None:
    with service_call(logger, "runs", "submit", level=logging.DEBUG) as call:
        call["entity_id"] = "run:r1"
    assert written() == []


def test_a_call_of_another_part_logs_how_long_it_may_take(written: Written) -> None:
    log_integration_call(
        logger, provider="pip", operation="install", attempt=1, timeout_seconds=1.5, begun=time.perf_counter()
    )
    log_integration_call(
        logger,
        provider="pip",
        operation="install",
        attempt=2,
        timeout_seconds=1.5,
        begun=time.perf_counter(),
        error=ValueError("no"),
    )
    good, bad = written()
    assert good["meta"] == {"provider": "pip", "operation": "install", "attempt": 1, "timeout_ms": 1500}
    assert (bad["status"], bad["meta"]["exception_type"]) == ("failed", "ValueError")


def test_a_letter_of_no_flow_moves_as_well(written: Written) -> None:
    log_dlq_transition(logger, LetterMove.ENTERED, letter_id=7, job_type=None, reason="invalid_job", run_id=None)
    [line] = written()
    assert (line["event"], line["status"]) == ("dlq.transition", "entered")
    assert line["meta"] == {"job_type": "unknown", "reason": "invalid_job", "letter_id": 7}


def test_switches_are_logged_with_their_source(written: Written) -> None:
    log_feature_flags(logger, FleetSettings(log_utc=True), "log_utc", "log_format")
    first, second = written()
    assert first["meta"] == {"flag": "PYOCO_LOG_UTC", "value": True, "source": "settings"}
    assert second["meta"] == {"flag": "PYOCO_LOG_FORMAT", "value": "json", "source": "default"}

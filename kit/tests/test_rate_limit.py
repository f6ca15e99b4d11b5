"""A repeated failure is logged at once and then now and then, and an outage without its traceback."""

import logging

import pytest

from fleet_kit.errors import FleetError, NatsUnavailable
from fleet_kit.logs.rate_limit import RateLimitedLog

logger = logging.getLogger("fleet_test.loop")


class ShelfAway(FleetError):
    """The shelf is away."""

    status = 503
    provider = "shelf"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def failures(clock: Clock, caplog: pytest.LogCaptureFixture) -> RateLimitedLog:
    caplog.set_level(logging.DEBUG, logger.name)
    return RateLimitedLog(clock)


def levels_and_messages(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    found = [(record.levelno, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return found


def test_an_outage_is_logged_at_once_and_then_now_and_then(
    failures: RateLimitedLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = "tidying was interrupted: The shelf is away. (stolen)"
    for _ in range(3):
        failures.log(logger, "tidying was interrupted", ShelfAway(reason="stolen"))
    assert levels_and_messages(caplog) == [
        (logging.WARNING, sentence),
        (logging.DEBUG, sentence),
        (logging.DEBUG, sentence),
    ]
    clock.now += 29.9
    failures.log(logger, "tidying was interrupted", ShelfAway(reason="stolen"))
    assert levels_and_messages(caplog) == [(logging.DEBUG, sentence)]
    clock.now += 0.1
    failures.log(logger, "tidying was interrupted", ShelfAway(reason="stolen"))
    assert levels_and_messages(caplog) == [(logging.WARNING, sentence)]


def test_two_outages_that_take_turns_are_each_logged_once(
    failures: RateLimitedLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        failures.log(logger, "tidying was interrupted", ShelfAway(reason="stolen"))
        failures.log(logger, "tidying was interrupted", NatsUnavailable("NATS is away"))
    assert [level for level, _ in levels_and_messages(caplog)] == [logging.WARNING] * 2 + [logging.DEBUG] * 8


def test_the_next_outage_is_news(failures: RateLimitedLog, caplog: pytest.LogCaptureFixture) -> None:
    failures.log(logger, "tidying was interrupted", ShelfAway())
    failures.recovered()
    failures.log(logger, "tidying was interrupted", ShelfAway())
    assert levels_and_messages(caplog) == [(logging.WARNING, "tidying was interrupted: The shelf is away.")] * 2


def test_an_outage_is_logged_without_its_traceback(
    failures: RateLimitedLog, caplog: pytest.LogCaptureFixture
) -> None:
    failures.log(logger, "tidying was interrupted", ShelfAway(reason="stolen"))
    failures.log(logger, "tidying was interrupted", NatsUnavailable())
    shelf, nats = caplog.records
    assert (shelf.exc_info, nats.exc_info) == (None, None)
    assert (shelf.__dict__["exc_type"], shelf.__dict__["status"]) == ("ShelfAway", "failed")
    assert shelf.__dict__["meta"] == {
        "error_code": "DEPENDENCY_ERROR",
        "provider": "shelf",
        "dependency_status": "stolen",
        "retryable": True,
    }
    assert nats.__dict__["err_id"] == "ERR-PYOCO-0003"
    assert shelf.funcName == "test_an_outage_is_logged_without_its_traceback"


def test_an_unexpected_error_is_logged_with_its_traceback_once(
    failures: RateLimitedLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        failures.log(logger, "tidying was interrupted", KeyError("x"))
    first, second = caplog.records
    assert (first.levelno, bool(first.exc_info)) == (logging.ERROR, True)
    assert (second.levelno, second.exc_info, second.__dict__["exc_type"]) == (logging.DEBUG, None, "KeyError")

"""A log line has the required fields of both documents, and failures keep where they came from."""

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleet_contracts.log_events import LogStatus
from fleet_contracts.problems import Problem
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.setup import configure_logging, log_context, problem_fields
from fleet_kit.settings import FleetSettings
from fleet_testkit.log_check import check_log_lines

logger = logging.getLogger("fleet_test.inner.room")

JOB = {"job_type": "hello", "attempt": 1, "queue": "default"}

Configure = Callable[..., Callable[[], list[str]]]
Written = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Configure logging as a process does; the answer reads the lines on stdout. Restored afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    hooks = sys.excepthook, sys.unraisablehook, threading.excepthook

    def begin(stdout: Any = None, **settings: Any) -> Callable[[], list[str]]:
        output = stdout or io.StringIO()
        monkeypatch.setattr(sys, "stdout", output)
        configure_logging(service="pyoco-server:http", component="test", settings=FleetSettings(**settings))
        return lambda: output.getvalue().splitlines()

    yield begin
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.excepthook, sys.unraisablehook, threading.excepthook = hooks
    logging.captureWarnings(False)


@pytest.fixture
def written(configure: Configure) -> Callable[[], list[dict[str, Any]]]:
    """Every line that is read is one that the schema allows."""
    lines = configure()

    def read() -> list[dict[str, Any]]:
        check_log_lines(lines(), of="stdout")
        return [json.loads(line) for line in lines()]

    return read


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class RudeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def fail() -> None:
    raise ValueError("no such luck")


def test_every_line_has_the_required_fields_of_both_documents(written: Callable[[], list[dict[str, Any]]]) -> None:
    logger.info("hello %s", "Ada")
    [line] = written()
    # The architecture document: who, where, what.
    assert datetime.fromisoformat(line["ts"]).utcoffset() == timedelta(0)
    assert (line["service"], line["level"], line["logger"]) == ("pyoco-server:http", "INFO", "fleet_test.inner.room")
    assert line["message"] == "hello Ada"
    assert line["pathname"] == __file__
    assert isinstance(line["lineno"], int)
    assert line["func"] == "test_every_line_has_the_required_fields_of_both_documents"
    # The contracts document.
    assert (line["event"], line["component"], line["status"]) == ("log", "test.inner.room", "completed")
    assert (line["duration_ms"], line["entity_id"], line["request_id"], line["meta"]) == (0, "", "", {})


def test_what_is_given_is_written(written: Callable[[], list[dict[str, Any]]]) -> None:
    logger.info(
        "job done",
        extra={
            "event": "worker_job",
            "status": "timeout",
            "duration_ms": 12,
            "entity_id": "job:42",
            "meta": {**JOB, "error_code": "CONFLICT"},
            "component": "worker.ingest",
            "run_id": "r1",
            "flow_name": "hello",
            "tag": "default",
            "worker_id": "w1",
            "reason": "why not",
            **problem_fields(Problem.EXECUTION_FAILED),
        },
    )
    [line] = written()
    assert (line["event"], line["component"], line["duration_ms"]) == ("worker_job", "worker.ingest", 12)
    assert (line["entity_id"], line["status"]) == ("job:42", "timeout")
    assert line["meta"] == {**JOB, "error_code": "CONFLICT"}
    assert (line["run_id"], line["flow_name"], line["tag"], line["worker_id"]) == ("r1", "hello", "default", "w1")
    assert (line["err_id"], line["msg_id"]) == ("ERR-PYOCO-0007", "MSG-PYOCO-0007")
    assert line["reason"] == "why not"


def test_the_context_is_on_every_line_inside_it_and_on_none_outside(
    written: Callable[[], list[dict[str, Any]]],
) -> None:
    with log_context(request_id="q1"):
        with log_context(run_id="r1"):
            logger.info("inner")
        logger.info("outer")
    logger.info("outside")
    inner, outer, outside = written()
    assert (inner["request_id"], inner["run_id"], inner["entity_id"]) == ("q1", "r1", "run:r1")
    assert (outer["request_id"], outer["entity_id"]) == ("q1", "")
    assert "run_id" not in outer
    assert outside["request_id"] == ""


def test_an_exception_keeps_its_type_its_message_its_origin_and_its_traceback(
    written: Callable[[], list[dict[str, Any]]],
) -> None:
    try:
        fail()
    except ValueError:
        logger.exception("it went wrong")
    [line] = written()
    assert line["status"] == "failed"
    assert (line["exc_type"], line["exc_message"]) == ("ValueError", "no such luck")
    assert line["exc_origin"].startswith(f"{__file__}:")
    assert line["exc_origin"].endswith(" in fail")
    assert 'raise ValueError("no such luck")' in line["exc_traceback"]


def test_the_original_of_a_translated_exception_is_in_the_traceback(
    written: Callable[[], list[dict[str, Any]]],
) -> None:
    try:
        try:
            fail()
        except ValueError as error:
            raise RuntimeError("translated") from error
    except RuntimeError:
        logger.exception("it went wrong")
    [line] = written()
    assert line["exc_type"] == "RuntimeError"
    assert "ValueError: no such luck" in line["exc_traceback"]


def test_tracebacks_can_be_left_out(configure: Configure) -> None:
    lines = configure(log_include_traceback=False)
    try:
        fail()
    except ValueError:
        logger.exception("it went wrong")
    [line] = map(json.loads, lines())
    assert "exc_traceback" not in line
    assert (line["exc_type"], line["exc_message"]) == ("ValueError", "no such luck")


def test_local_time_carries_its_offset(configure: Configure) -> None:
    lines = configure(log_utc=False)
    logger.info("now")
    [line] = map(json.loads, lines())
    moment = datetime.fromisoformat(line["ts"])
    assert moment.utcoffset() == moment.replace(tzinfo=None).astimezone().utcoffset()


def test_lines_below_the_level_are_not_written(configure: Configure) -> None:
    lines = configure(log_level="WARNING")
    logger.info("chatter")
    logger.warning("news")
    assert [json.loads(line)["message"] for line in lines()] == ["news"]


def test_values_that_are_no_json_do_not_break_a_line(written: Callable[[], list[dict[str, Any]]]) -> None:
    logger.info("odd", extra={"meta": {"path": object, 1: "one"}})
    [line] = written()
    assert line["meta"]["1"] == "one"


def test_a_line_holds_no_character_that_a_terminal_would_obey(configure: Configure) -> None:
    lines = configure()
    logger.info("GET /\x1b[2J\x9b2J\x7f \xe9\xa0")
    [line] = lines()
    assert json.loads(line)["message"] == "GET /\x1b[2J\x9b2J\x7f \xe9\xa0"
    assert not {"\x1b", "\x9b", "\x7f"} & set(line)
    assert "\xe9\xa0" in line


@pytest.mark.parametrize(
    ("value", "logged"),
    [
        ("\udcff", "\\udcff"),
        (2**70, str(2**70)),
        ({(1, 2): {3}}, {"(1, 2)": [3]}),
        ([Rude()], ["<Rude whose repr raised RuntimeError>"]),
    ],
)
def test_a_line_is_logged_for_any_value(configure: Configure, value: object, logged: object) -> None:
    lines = configure()
    logger.info("odd", extra={"meta": {"value": value}})
    with log_context(flow_name="\udcff"):
        logger.info("no \udcff text")
    check_log_lines(lines(), of="stdout")
    odd, text = map(json.loads, lines())
    assert (odd["message"], odd["level"], odd["meta"]) == ("odd", "INFO", {"value": logged})
    assert (text["message"], text["flow_name"]) == ("no \\udcff text", "\\udcff")


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_arguments_that_do_not_fit_are_logged_beside_the_message(configure: Configure, log_format: str) -> None:
    lines = configure(log_format=log_format)
    logger.info("%d runs of %s", "many")
    logger.info("hello %s", Rude())
    first, second = lines()
    assert "'%d runs of %s' with ('many',)" in first
    assert "'hello %s' with <tuple whose repr raised RuntimeError>" in second


def test_an_exception_without_a_message_is_logged(written: Written) -> None:
    logger.error("it went wrong", exc_info=RudeError())
    [line] = written()
    assert (line["exc_type"], line["exc_message"]) == ("RudeError", "<RudeError whose str raised RuntimeError>")


def test_a_line_that_cannot_be_formatted_is_replaced_by_a_report(written: Written) -> None:
    for _ in range(2):
        logger.error("not a word", extra={"meta": None})
    line, again = written()
    assert line["message"] == again["message"] == "logging failed: a line is lost"
    assert (line["err_id"], line["level"], line["exc_type"]) == ("ERR-PYOCO-0013", "ERROR", "TypeError")
    assert (line["pathname"], line["logger"]) == (__file__, logger.name)


def test_a_failing_output_is_reported_once_and_never_breaks_the_work(
    configure: Configure, capfd: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        def write(self, _: str) -> None:
            raise OSError("disk full")

        def flush(self) -> None:
            pass

    configure(Broken())
    logger.info("one")
    logger.info("two")
    [report] = capfd.readouterr().err.splitlines()
    check_log_lines([report], of="stderr")
    line = json.loads(report)
    assert (line["err_id"], line["msg_id"]) == ("ERR-PYOCO-0013", "MSG-PYOCO-0013")
    assert (line["exc_type"], line["exc_message"]) == ("OSError", "disk full")


def test_an_output_that_fails_with_stderr_breaks_no_work_either(
    monkeypatch: pytest.MonkeyPatch, configure: Configure
) -> None:
    full = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115 - closed below
    monkeypatch.setattr(sys, "__stderr__", full)
    configure(full)
    logger.info("one")
    logger.info("two")
    with pytest.raises(OSError, match="No space left"):
        full.close()


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("fleet_kit.nats.link", "test.nats.link"),
        ("uvicorn.error", "test.uvicorn"),
        ("root", "test"),
        ("asyncio", "test.asyncio"),
    ],
)
def test_the_component_is_the_process_and_the_room_in_it(written: Written, name: str, component: str) -> None:
    logging.getLogger(name if name != "root" else None).warning("hello")
    assert [line["component"] for line in written()] == [component]


def test_a_failure_is_logged_with_its_code_and_what_that_code_asks_for(written: Written) -> None:
    logger.error("plain")
    logger.error("away", extra=problem_fields(Problem.NATS_UNAVAILABLE))
    try:
        raise NatsUnavailable(reason="refused")
    except NatsUnavailable:
        logger.warning("tried", exc_info=True)
    try:
        fail()
    except ValueError:
        logger.exception("broken")
    logger.error("no flow", extra={"run_id": "r1", **problem_fields(Problem.FLOW_NOT_FOUND)})
    logger.error("no job", extra=problem_fields(Problem.INVALID_JOB))
    raised = {"exc_type": "KeyError", **problem_fields(Problem.EXECUTION_FAILED)}
    logger.error("elsewhere", extra=raised)
    plain, away, tried, broken, no_flow, no_job, elsewhere = (line["meta"] for line in written())
    assert plain == {"error_code": "INTERNAL_ERROR", "exception_type": "unknown", "retryable": False}
    assert elsewhere == {"error_code": "INTERNAL_ERROR", "exception_type": "KeyError", "retryable": False}
    assert no_flow == {"error_code": "NOT_FOUND", "resource": "run:r1"}
    assert no_job == {
        "error_code": "VALIDATION_ERROR",
        "fields": ["job"],
        "detail": "an invalid job was received",
    }
    dependency = {"error_code": "DEPENDENCY_ERROR", "provider": "nats", "retryable": True}
    assert away == {**dependency, "dependency_status": "unavailable"}
    assert tried == {**dependency, "dependency_status": "refused"}
    assert broken["exception_type"] == "ValueError"


def test_a_problem_is_a_failure_at_any_level(written: Written) -> None:
    logger.warning("away", extra=problem_fields(Problem.NATS_UNAVAILABLE))
    logger.info("no flow", extra={"run_id": "r1", **problem_fields(Problem.FLOW_NOT_FOUND)})
    logger.warning("too slow", extra={"status": LogStatus.TIMEOUT, **problem_fields(Problem.CANCEL_TIMED_OUT)})
    away, no_flow, too_slow = written()
    assert [line["status"] for line in (away, no_flow, too_slow)] == ["failed", "failed", "timeout"]
    assert (away["meta"]["error_code"], away["meta"]["provider"]) == ("DEPENDENCY_ERROR", "nats")
    assert no_flow["meta"] == {"error_code": "NOT_FOUND", "resource": "run:r1"}
    assert too_slow["meta"]["error_code"] == "INTERNAL_ERROR"


def test_an_uncaught_exception_is_a_line(written: Written) -> None:
    error = ValueError("no such luck")
    sys.excepthook(ValueError, error, None)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    thread = threading.Thread(target=fail, name="worker bee")
    thread.start()
    thread.join()
    in_main, in_thread = written()
    assert (in_main["level"], in_main["exc_type"]) == ("CRITICAL", "ValueError")
    assert "worker bee" in in_thread["message"]
    assert in_thread["exc_origin"].endswith(" in fail")


def test_a_warning_of_python_is_a_line(written: Written) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("this will change", DeprecationWarning, stacklevel=1)
    [line] = written()
    assert (line["level"], line["logger"]) == ("WARNING", "py.warnings")


def test_a_process_may_be_about_something_on_every_line(
    monkeypatch: pytest.MonkeyPatch, configure: Configure
) -> None:
    configure()
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    configure_logging(service="pyoco-server:worker", component="worker", settings=FleetSettings(), worker_id="w1")
    logger.info("one")
    with log_context(run_id="r1"):
        logger.info("two")
    one, two = map(json.loads, output.getvalue().splitlines())
    assert (one["worker_id"], one["entity_id"]) == ("w1", "worker:w1")
    assert (two["worker_id"], two["entity_id"]) == ("w1", "run:r1")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the key pyoco_ab12_" + "x" * 40 + " is bad", "the key pyoco_ab12_(withheld) is bad"),
        ("GET /runs/pyoco%5Fab12%5f" + "x" * 40 + "?", "GET /runs/pyoco_ab12_(withheld)?"),
        ("GET /runs/%2570yoco%25255Fab12_" + "%78" * 40 + "/a%20b", "GET /runs/pyoco_ab12_(withheld)/a%20b"),
        ("GET /runs/%25%37%30yoco_ab12_" + "x" * 40, "GET /runs/pyoco_ab12_(withheld)"),
        ("100%41 of it", "100%41 of it"),
        ("seed SU" + "A" * 56, "seed (withheld)"),
        ("at postgresql://me:hunter2@db/x", "at postgresql://me:(withheld)@db/x"),
        ("at nats://127.0.0.1:4222 and a@b", "at nats://127.0.0.1:4222 and a@b"),
        (
            "bad [type=int, input_value='hunter2', input_type=str]",
            "bad [type=int, input_value=(withheld), input_type=str]",
        ),
        (
            "bad [type=x, input_value={'a': [1], 'pw': 'hunter2\n'}, input_type=dict]\nand [input_value=['hunter2']",
            "bad [type=x, input_value=(withheld), input_type=dict]\nand [input_value=(withheld)]",
        ),
        ("bad [input_value='hunter2']\nmore", "bad [input_value=(withheld)]\nmore"),
        (
            "[SQL: select 1]\n[parameters: ('hunter2', 1)]\n(more)",
            "[SQL: select 1]\n[parameters: (withheld)]\n(more)",
        ),
    ],
)
def test_what_looks_like_a_secret_is_withheld(written: Written, text: str, shown: str) -> None:
    logger.info("%s", text)
    assert [line["message"] for line in written()] == [shown]

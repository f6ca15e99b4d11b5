"""A service that starts says all it has to say in lines of its log."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from fleet_testkit.log_check import check_log_lines

SCRIPT = """
import sys
from fleet_kit.http.serve import run_service
from fleet_kit.settings import HttpSettings
run_service("test", HttpSettings, lambda settings: sys.exit(0))
"""

# The status shows whether other processes of the same user may look into it (PR_GET_DUMPABLE).
DUMPABLE = """
import ctypes, sys
from fleet_kit.http.serve import run_service
from fleet_kit.settings import HttpSettings
run_service("test", HttpSettings, lambda settings: sys.exit(ctypes.CDLL(None).prctl(3)))
"""


def started_with(env: dict[str, str], script: str = SCRIPT) -> tuple[int, list[dict[str, Any]]]:
    """How a service ends that has nothing to serve, and what it has said."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYOCO_", "OTEL_"))}
    asked_for = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "PYOCO_LOAD_DOTENV": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=inherited | asked_for | env,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    check_log_lines(done.stdout.splitlines(), of="stdout")
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of Linux")
def test_other_processes_of_its_user_cannot_look_into_it() -> None:
    assert started_with({}, DUMPABLE)[0] == 0


def test_a_warning_of_the_library_of_traces_is_a_line() -> None:
    status, (warning, start) = started_with({"OTEL_TRACES_SAMPLER": "typo"})
    assert status == 0
    assert (warning["level"], warning["component"]) == ("WARNING", "test.telemetry.setup")
    assert "typo" in warning["message"]
    assert start["level"] == "INFO"


@pytest.mark.parametrize(
    ("env", "sentence", "fields"),
    [
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "9999"}, "max_export_batch_size", []),
        ({"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "-1"}, "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", []),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "'zipkin' is not allowed", ["OTEL_TRACES_EXPORTER"]),
        ({"PYOCO_PORT": "0"}, "PYOCO_PORT='0' is not allowed", ["PYOCO_PORT"]),
    ],
)
def test_settings_that_cannot_be_used_end_it_with_one_line(
    env: dict[str, str], sentence: str, fields: list[str]
) -> None:
    status, [line] = started_with(env)
    assert status == 1
    assert (line["level"], line["exc_type"]) == ("CRITICAL", "SettingsError")
    assert (line["meta"]["error_code"], line["meta"]["fields"]) == ("VALIDATION_ERROR", fields)
    assert sentence in line["message"]

"""Whatever the schemas of the services allow or forbid, sent through the gateway: an answer, never a failure."""

import os
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

import fleet_auth.main
import fleet_auth.settings
import fleet_runs_api.main
import fleet_runs_api.settings
import fleet_wheels_api.main
import fleet_wheels_api.settings
import fleet_workers_api.main
import fleet_workers_api.settings
from fleet_testkit.api_keys import issue_key
from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import submit, wait_ended

APPS: dict[str, Callable[[], FastAPI]] = {
    "runs-api": lambda: fleet_runs_api.main.build(fleet_runs_api.settings.RunsSettings()),
    "workers-api": lambda: fleet_workers_api.main.build(fleet_workers_api.settings.Settings()),
    "wheels-api": lambda: fleet_wheels_api.main.build(fleet_wheels_api.settings.Settings()),
    "auth": lambda: fleet_auth.main.build(fleet_auth.settings.Settings()),
}
# The gateway does not hand these on.
INSIDE = {"/ready", "/verify", "/fleet/metrics"}
OF_RUNS_API = {"/health", "/metrics"}
# More of the same, for whoever wants to search for an hour: the search is the same at every start otherwise.
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))


def _searches() -> list[Any]:
    """Every operation that the gateway hands on, with input of its schema and, where it has one, beside it."""
    found = []
    for service, build in APPS.items():
        for result in schemathesis.openapi.from_dict(build().openapi()).get_all_operations():
            operation = result.ok()
            if operation.path in INSIDE or (operation.path in OF_RUNS_API and service != "runs-api"):
                continue
            for mode in GenerationMode:
                # Any text is a good path segment: there must be more to break.
                if mode is GenerationMode.POSITIVE or len(operation.query) or len(operation.body):
                    name = f"{operation.method.upper()} {operation.path} {mode.value}"
                    found.append(pytest.param(operation, mode, id=name))
    return found


@pytest.fixture(scope="module")
def caller(guarded: Fleet) -> dict[str, str]:
    return issue_key(guarded, "fuzz")


@pytest.fixture(scope="module")
def known_run(guarded: Fleet, caller: dict[str, str]) -> str:
    with httpx.Client(base_url=guarded.url, headers=caller, timeout=30) as client:
        run_id = submit(client, "hello", tag="nobody-fuzzes-this")
        client.post(f"/runs/{run_id}/cancel")
        wait_ended(client, [run_id])
        return run_id


@pytest.mark.parametrize(("operation", "mode"), _searches())
def test_no_request_makes_a_service_fail(
    guarded: Fleet, caller: dict[str, str], known_run: str, operation: Any, mode: GenerationMode
) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize="FUZZ_EXAMPLES" not in os.environ,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), with_known_run=st.booleans())
    def ask(case: Case, with_known_run: bool) -> None:
        if with_known_run and "run_id" in case.path_parameters:
            case.path_parameters["run_id"] = known_run
        if "timeout_sec" in operation.query:
            case.query["timeout_sec"] = 1
        answer = case.call(base_url=guarded.url, headers=caller, timeout=30)
        case.validate_response(answer, checks=[not_a_server_error, response_schema_conformance])
        assert "Traceback" not in answer.text
        if answer.status_code >= 400:
            error = answer.json()
            assert error["ok"] is False, error
            assert error["error"]["meta"]["request_id"] == answer.headers["x-request-id"][0]

    ask()

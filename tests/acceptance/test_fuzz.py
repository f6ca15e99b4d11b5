"""Requests that the OpenAPI document of the gateway allows or forbids: answers as it describes them, no failure."""

import os
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from fleet_testkit.api_keys import issue_key
from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import submit, wait_ended

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from schemathesis import Case

# Refusals that every route may give: their document has them as `default`.
ANY_TIME = {400, 404, 405}
# More examples, for a search of an hour; otherwise the examples are the same at every start.
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "10"))
# So many tests share the operations: each has a time limit of its own.
SHARES = 8


@cache
def searches(url: str) -> list[tuple[Any, Any]]:
    """Every operation of the gateway, with input of its schema and, where it has one, beside it."""
    # Here and not above: to import it and to read the schemas takes seconds, in every process that collects tests.
    import schemathesis
    from schemathesis import GenerationMode

    found = []
    document = schemathesis.openapi.from_url(f"{url}/openapi.json")
    document.validate()
    for result in document.get_all_operations():
        operation = result.ok()
        # Any text is a good path segment: there must be more to break.
        breakable = len(operation.query) or len(operation.body)
        found += [(operation, mode) for mode in GenerationMode if mode is GenerationMode.POSITIVE or breakable]
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


@pytest.mark.parametrize("share", range(SHARES))
def test_no_request_makes_a_service_fail(guarded: Fleet, caller: dict[str, str], known_run: str, share: int) -> None:
    mine = searches(guarded.url)[share::SHARES]
    assert mine
    for operation, mode in mine:
        search(operation, mode, guarded, caller, known_run)


def search(operation: Any, mode: Any, guarded: Fleet, caller: dict[str, str], known_run: str) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import response_schema_conformance

    described = set(operation.definition.raw["responses"])

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize="FUZZ_EXAMPLES" not in os.environ,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), with_known_run=st.booleans())
    def ask(case: "Case", with_known_run: bool) -> None:
        note(f"{operation.method.upper()} {operation.path}, {mode.value}")
        if with_known_run and "run_id" in case.path_parameters:
            case.path_parameters["run_id"] = known_run
        if "timeout_sec" in operation.query:
            case.query["timeout_sec"] = 1
        answer = case.call(base_url=guarded.url, headers=caller, timeout=30)
        case.validate_response(answer, checks=[not_a_server_error, response_schema_conformance])
        assert "Traceback" not in answer.text
        assert str(answer.status_code) in described or answer.status_code in ANY_TIME
        if answer.status_code >= 400:
            error = answer.json()
            assert error["ok"] is False, error
            assert error["error"]["meta"]["request_id"] == answer.headers["x-request-id"][0]

    ask()

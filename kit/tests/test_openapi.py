"""What services add to their OpenAPI documents."""

from typing import Any

import pytest
from pydantic import BaseModel

from fleet_contracts.problems import Problem
from fleet_kit.errors import FleetError
from fleet_kit.http.openapi import event_stream, json_body, lift_definitions, refusals


class Inner(BaseModel):
    number: int


class Told(BaseModel):
    """Something was told."""

    inner: Inner


class Gone(FleetError):
    """It is gone; look elsewhere."""

    problem = Problem.RUN_NOT_FOUND


class Busy(FleetError):
    """It is busy."""

    status = 409


def document(**operation: Any) -> dict[str, Any]:
    return {"paths": {"/x": {"get": operation}}}


def test_errors_are_described_by_status_in_their_own_words() -> None:
    said = {status: answer["description"] for status, answer in refusals(Gone, Busy).items()}
    assert said == {404: "It is gone; look elsewhere (ERR-PYOCO-0005).", 409: "It is busy."}


def test_the_models_of_bodies_and_events_become_components() -> None:
    found = document(**json_body(Told), responses=event_stream(told=Told))
    lift_definitions(found)
    assert set(found["components"]["schemas"]) == {"Inner", "Told"}
    stream = found["paths"]["/x"]["get"]["responses"][200]
    assert "- `told`: Something was told." in stream["description"]
    [event] = stream["content"]["text/event-stream"]["schema"]["oneOf"]
    assert event["properties"]["data"]["contentSchema"] == {"$ref": "#/components/schemas/Told"}


def test_two_models_of_one_name_are_refused() -> None:
    found = document(**json_body(Told))
    found["components"] = {"schemas": {"Inner": {"type": "string"}}}
    with pytest.raises(ValueError, match="the name Inner"):
        lift_definitions(found)

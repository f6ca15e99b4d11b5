"""Submits of flows that live workers offer: their params are checked, and the flow's defaults apply."""

import time
from typing import Any

import pytest

from fleet_contracts.catalogue import REPLACES_RESULT_OF, FlowDefaults, FlowOffer
from fleet_contracts.retry import RetryPolicy
from fleet_runs_api.accept.params_schema import ParamsSchema, UnusableSchema
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest
from .offers import GREETING, flow, offer

FITTING = {"name": "Ada", "times": 2, "tone": "warm", "place": {"city": "Ulm"}}


async def refused(service: RunsUnderTest, path: str, body: Any, **headers: str) -> dict[str, Any]:
    answer = await service.client.post(path, json=body, headers=headers)
    assert answer.status_code == 422, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["meta"]["err_id"] == "ERR-PYOCO-0002"
    assert await service.jobs() == []
    assert service.rows("SELECT * FROM runs") == []
    return error


async def test_params_that_do_not_fit_are_refused_with_field_and_reason(service: RunsUnderTest) -> None:
    await offer(service, flow())
    params = {"times": 0, "tone": "loud", "place": {}, "nmae": "Ada"}
    error = await refused(service, "/runs", {"flow_name": "greet", "params": params})
    assert {fault["field"]: fault["reason"] for fault in error["meta"]["fields"]} == {
        "params.times": "value is less than the minimum of 1",
        "params.tone": 'value is not one of "warm" or "cool" and value is not of type "null"',
        "params.place.city": "is required",
        "params.nmae": 'unknown parameter "nmae" (did you mean "name"?); known: name, place, times, tone',
        "params.name": "is required",
    }
    assert "params.times: value is less than the minimum of 1; " in error["message"]
    assert error["message"].endswith('; to submit it all the same, send "check_params": false')
    await service.submit("greet", params=FITTING)
    await service.submit("greet", params={"anything": 1}, check_params=False)


async def test_what_only_takes_the_place_of_a_tasks_result_is_not_listed(service: RunsUnderTest) -> None:
    properties = {"city": {"type": "string"}, "fetch": {REPLACES_RESULT_OF: "fetch"}}
    await offer(service, flow(params_schema={"properties": properties, "additionalProperties": False}))
    error = await refused(service, "/runs", {"flow_name": "greet", "params": {"town": "Ulm"}})
    assert error["meta"]["fields"][0]["reason"] == 'unknown parameter "town"; known: city'
    await service.submit("greet", params={"fetch": "a result"})


async def test_a_bad_run_of_a_batch_is_named_and_none_is_accepted(service: RunsUnderTest) -> None:
    await offer(service, flow())
    good, bad = ({"flow_name": "greet", "params": params} for params in (FITTING, {"name": 7}))
    error = await refused(service, "/runs/batch", {"runs": [good, bad]})
    assert error["meta"]["index"] == 1
    assert error["meta"]["fields"] == [{"field": "runs.1.params.name", "reason": 'value is not of type "string"'}]
    assert error["message"].startswith('run 1 of the batch: params.name: value is not of type "string"')
    unchecked = {"runs": [good, bad | {"check_params": False}]}
    assert (await service.client.post("/runs/batch", json=unchecked)).status_code == 200


OTHER = {"type": "object", "properties": {"id": {"type": "integer"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("others", "accepted"),
    [
        ([flow(params_schema=OTHER)], True),
        ([flow(params_schema=None)], True),
        # It cannot be compiled, so it counts as absent.
        ([flow(params_schema={"type": "nonsense"})], True),
        ([flow(), flow("another", params_schema=OTHER)], False),
    ],
)
async def test_params_need_to_fit_one_of_the_offers_only(
    service: RunsUnderTest, others: list[FlowOffer], accepted: bool
) -> None:
    await offer(service, flow())
    await offer(service, *others, worker_id="w2")
    answer = await service.client.post("/runs", json={"flow_name": "greet", "params": {"id": 7}})
    assert (answer.status_code == 200) is accepted, answer.text


async def test_only_live_workers_of_the_runs_tag_are_asked(service: RunsUnderTest) -> None:
    await offer(service, flow(), tags=["gpu"])
    wrong = {"flow_name": "greet", "params": {"name": 7}}

    async def status(**more: Any) -> int:
        return (await service.client.post("/runs", json=wrong | more)).status_code

    assert (await status(), await status(tag="gpu")) == (200, 422)
    await offer(service, flow(), tags=["gpu"], silent_in=-1.0)

    async def is_accepted() -> bool:
        return await status(tag="gpu") == 200

    await eventually(is_accepted, within=5, what="the worker not counting any more")


async def test_a_repeated_submit_gets_its_answer_although_the_flow_has_changed(service: RunsUnderTest) -> None:
    headers = {"Idempotency-Key": "orders:4711:1"}
    wanted = {"flow_name": "greet", "params": {"name": 7}}
    first = await service.client.post("/runs", json=wanted, headers=headers)
    await offer(service, flow())
    for body in (wanted, wanted | {"check_params": False}):
        again = await service.client.post("/runs", json=body, headers=headers)
        assert (again.status_code, again.json()) == (200, first.json())
    assert (await service.client.post("/runs", json=wanted)).status_code == 422


RETRY = RetryPolicy(max_attempts=4)


async def test_a_submit_has_the_flows_defaults_where_it_says_nothing_else(service: RunsUnderTest) -> None:
    await offer(service, flow(defaults=FlowDefaults(retry=RETRY, timeout_sec=600, tag="gpu")), tags=["gpu", "cpu"])
    run = await service.snapshot(await service.submit("greet", params=FITTING))
    assert (run.tag, run.tags, run.retry) == ("gpu", ["gpu"], RETRY)
    assert run.deadline_at == pytest.approx(time.time() + 600, abs=30)
    own = {"tag": "cpu", "tags": ["x"], "retry": {"max_attempts": 2}, "deadline_at": time.time() + 60}
    run = await service.snapshot(await service.submit("greet", params=FITTING, **own))
    assert (run.tag, run.tags, run.retry) == ("cpu", ["x"], RetryPolicy(max_attempts=2))
    assert run.deadline_at == pytest.approx(time.time() + 60, abs=30)
    # The caller's own words are compared, not what was made of them.
    headers = {"Idempotency-Key": "orders:4711:2"}
    body = {"flow_name": "greet", "params": FITTING}
    first = await service.client.post("/runs", json=body, headers=headers)
    await offer(service, flow(), tags=["gpu"])
    again = await service.client.post("/runs", json=body, headers=headers)
    assert (again.status_code, again.json()) == (200, first.json())


async def test_a_default_in_which_workers_disagree_does_not_apply(service: RunsUnderTest) -> None:
    await offer(service, flow(defaults=FlowDefaults(retry=RETRY, timeout_sec=600, tag="gpu")), tags=["default"])
    await offer(service, flow(defaults=FlowDefaults(retry=RETRY)), worker_id="w2")
    run = await service.snapshot(await service.submit("greet", params=FITTING))
    assert (run.tag, run.retry, run.deadline_at) == ("default", RETRY, None)


async def test_defaults_hold_while_the_worker_that_has_the_flow_is_away_and_the_latest_ones_win(
    service: RunsUnderTest,
) -> None:
    first = FlowDefaults(retry=RetryPolicy(max_attempts=2), tag="gpu")
    await offer(service, flow(defaults=first), tags=["gpu"], loaded_at=1.0, silent_in=-1.0)
    latest = FlowDefaults(retry=RETRY, tag="gpu")
    await offer(service, flow(defaults=latest), worker_id="w2", tags=["gpu"], loaded_at=2.0, silent_in=-1.0)
    await offer(service, flow("another"), worker_id="w3")
    # Params are not checked meanwhile.
    run = await service.snapshot(await service.submit("greet", params={"name": 7}))
    assert (run.tag, run.retry) == ("gpu", RETRY)


def _doubling() -> dict[str, Any]:
    definitions = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, "d40": {"type": "object"}}}


def _nested(levels: int) -> dict[str, Any]:
    return {"not": _nested(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    "schema",
    [
        _doubling(),
        _nested(100),
        {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(1000)}},
        {"properties": {"again": {"$ref": "#"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/missing"},
        {"$id": "http://somewhere.example/", "$ref": "#/x"},
        {"properties": {"a": {"pattern": "(a{1000}){1000}"}}},
        {"properties": {"a": {"pattern": "(?=a)b"}}},
        {"patternProperties": {f"^{i}": {} for i in range(100)}},
        {"properties": {"a": {"enum": list(range(10_000))}}},
        {"properties": {"a": {"const": "x" * 100_000}}},
        {"type": "nonsense"},
        {"required": 7},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_a_hostile_schema_is_not_used(schema: dict[str, Any]) -> None:
    begun = time.perf_counter()
    with pytest.raises(UnusableSchema):
        ParamsSchema.compile(schema)
    assert time.perf_counter() - begun < 2.0


def test_what_would_take_long_to_check_is_not_checked_and_many_faults_are_cut_off() -> None:
    items = {"properties": {"a": {"items": {"anyOf": [{"const": i} for i in range(1000)]}}}}
    schema = ParamsSchema.compile(items)
    assert schema.faults({"a": [-1] * 50_000}, values=50_000) == []
    assert schema.faults({"a": [-1] * 100}, values=100) == [
        {"field": "params", "reason": "does not fit the schema of the flow"}
    ]
    greeting = ParamsSchema.compile(GREETING)
    many = greeting.faults({f"p{i}": i for i in range(300)} | {"x" * 5000 + "\x1b": 1}, values=300)
    assert len(many) == 20
    assert all(len(one["field"]) < 100 and len(one["reason"]) <= 300 for one in many)
    assert greeting.faults({"name": "Ada", "times": 2**200}, values=2) == []

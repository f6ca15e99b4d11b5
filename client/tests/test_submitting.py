"""How submits are written: params, options, batches, and what a refused batch leaves."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from pyoco_fleet import BadRequest, Fleet, FleetError, WaitTimeout, outstanding, params_of
from pyoco_fleet.recipes import batches

from .conftest import QUICK, ScriptedServer, answer, events, problem

ACCEPTED = answer(200, {"run_id": "r1", "status": "PENDING"})


@params_of("charge")
@dataclass
class Charge:
    amount: int
    receipt: Path = Path("a.pdf")


@params_of("refund")
class Refund(BaseModel):
    amount: int = Field(alias="sum")


class Partial(Refund):
    pass


def bodies(server: ScriptedServer) -> list[Any]:
    return [json.loads(request.split("\r\n\r\n")[1]) for request in server.requests]


@pytest.fixture
def fleet(server: ScriptedServer) -> Fleet:
    return Fleet(server.url, retries=QUICK)


def test_keywords_are_params_or_options(server: ScriptedServer, fleet: Fleet) -> None:
    server.answers = [ACCEPTED]
    fleet.submit("etl", {"tag": "of the params"}, path=Path("a.csv"), flow="x", tag="gpu", retry=3)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    fleet.submit("etl", not_before=moment, timeout_sec=timedelta(minutes=2), tags=["a"], check_params=False)
    first, second = bodies(server)
    assert first == {
        "flow_name": "etl",
        "params": {"tag": "of the params", "path": "a.csv", "flow": "x"},
        "tag": "gpu",
        "retry": {"max_attempts": 3},
    }
    assert second == {
        "flow_name": "etl",
        "params": {},
        "not_before": moment.timestamp(),
        "timeout_sec": 120.0,
        "tags": ["a"],
        "check_params": False,
    }


def test_typed_params_are_sent_to_their_flow(server: ScriptedServer, fleet: Fleet) -> None:
    server.answers = [ACCEPTED]
    fleet.submit(Charge(3))
    fleet.submit(Partial(sum=4), tag="gpu")
    assert [(body["flow_name"], body["params"]) for body in bodies(server)] == [
        ("charge", {"amount": 3, "receipt": "a.pdf"}),
        ("refund", {"sum": 4}),
    ]
    with pytest.raises(TypeError, match="decorate it with @params_of"):
        fleet.submit(datetime.now(UTC))


@pytest.mark.parametrize("params", [{"a": object()}, {"a": b"\xff"}, {"a": float("nan")}])
def test_params_that_json_has_not_are_refused_here(fleet: Fleet, params: Any) -> None:
    with pytest.raises(BadRequest, match="params cannot be written as JSON"):
        fleet.submit("etl", params)


def test_params_without_names_are_refused_here(fleet: Fleet) -> None:
    with pytest.raises(BadRequest, match="params must be an object with names, not int"):
        fleet.map("etl", [3])


def test_a_batch_is_as_large_as_a_request_may_be() -> None:
    assert [len(batch) for batch in batches({"params": {}} for _ in range(2500))] == [1000, 1000, 500]
    many_values = {"params": {"list": list(range(40_000))}}
    assert [len(batch) for batch in batches([many_values] * 5)] == [2, 2, 1]
    large = {"params": {"text": "x" * 5_000_000}}
    assert [len(batch) for batch in batches([large] * 3)] == [1, 1, 1]
    assert list(batches([])) == []


def test_a_map_that_breaks_off_names_what_was_accepted(server: ScriptedServer, fleet: Fleet) -> None:
    server.answers = [
        answer(200, {"runs": [{"run_id": f"r{n}"} for n in range(1000)]}),
        problem(503, "busy"),
        problem(422, "runs.3.tag: no"),
    ]
    with pytest.raises(FleetError, match=r"runs\.3\.tag") as caught:
        fleet.map("etl", ({} for _ in range(1500)))
    assert len(caught.value.meta["accepted"]) == 1000
    first, second, again = server.headers("idempotency-key")
    assert second == again != first
    assert first == f"{caught.value.meta['idempotency_key']}:0"


@pytest.mark.parametrize("bad", [3, ValueError("the caller's own")])
def test_a_map_whose_params_break_off_says_how_to_get_the_ids_of_what_was_accepted(
    server: ScriptedServer, fleet: Fleet, bad: Any
) -> None:
    server.answers = [answer(200, {"runs": [{"run_id": f"r{n}"} for n in range(1000)]})]

    def params() -> Iterator[Any]:
        yield from ({} for _ in range(1001))
        if isinstance(bad, Exception):
            raise bad
        yield bad

    with pytest.raises((BadRequest, ValueError)) as caught:
        fleet.map("etl", params())
    [sent] = server.headers("idempotency-key")
    assert f"1000 runs were accepted before; the same map with idempotency_key='{str(sent)[:-2]}'" in str(
        caught.value.__notes__
    )


def test_results_come_over_one_stream_and_a_new_one_asks_for_the_rest(server: ScriptedServer, fleet: Fleet) -> None:
    def run(run_id: str, **ended: Any) -> str:
        data = {"run_id": run_id, "status": "RUNNING", "ended": False, "truncated": False, **ended}
        return f"event: run\ndata: {json.dumps(data)}\n\n"

    done = {"status": "COMPLETED", "ended": True, "too_large": False}
    server.answers = [
        events(run("a"), run("b", result=2, **done), run("a"), complete=False),
        # Ends are told again.
        events(run("b", result=2, **done), run("a")),
        events(run("a", result=1, **done), "event: end\ndata: {}\n\n"),
    ]
    group = fleet.group(["a", "b", "a"])
    assert [(run.id, run.result()) for run in group.as_completed()] == [("b", 2), ("a", 1)]
    assert [body["run_ids"] for body in bodies(server)] == [["a", "b"], ["a", "b"], ["a"]]
    assert group.counts == {"COMPLETED": 2}


def test_a_timeout_of_zero_asks_for_what_has_ended_already(server: ScriptedServer, fleet: Fleet) -> None:
    server.seconds = 0.1
    ready = "event: ready\ndata: {}\n\n"
    end = {"run_id": "a", "status": "COMPLETED", "ended": True, "truncated": False, "too_large": False, "result": 1}
    server.answers = [events(f"event: run\ndata: {json.dumps(end)}\n\n", ready), events(ready, complete=False)]
    assert fleet.run("a").result(timeout=0) == 1
    with pytest.raises(WaitTimeout):
        fleet.run("a").result(timeout=0)
    assert len(server.requests) == 2


def test_runs_of_a_group_that_no_stream_has_room_for_get_their_turn(
    server: ScriptedServer, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outstanding, "WINDOW", 2)

    def ended(*run_ids: str) -> bytes:
        data = {"status": "COMPLETED", "ended": True, "truncated": False, "too_large": False, "result": 1}
        return events(*(f"event: run\ndata: {json.dumps(data | {'run_id': run_id})}\n\n" for run_id in run_ids))

    # The server ends a stream when its time is over.
    server.answers = [ended(), ended("c"), ended("a", "b")]
    assert [run.id for run in fleet.group(["a", "b", "c"]).as_completed()] == ["c", "a", "b"]
    assert [body["run_ids"] for body in bodies(server)] == [["a", "b"], ["c", "a"], ["a", "b"]]
    assert "timeout_sec=10 " in server.requests[0]
    assert "timeout_sec=600 " in server.requests[2]


def test_notebooks_show_runs_and_groups_without_what_could_be_markup(server: ScriptedServer, fleet: Fleet) -> None:
    state = {"run_id": "<i>", "flow_name": "<b>", "status": "FAILED", "error": "<script>", "tasks": {"<t>": "FAILED"}}
    server.answers = [answer(200, state)]
    run = fleet.run("<i>")
    assert "not looked at yet" in run._repr_html_()
    shown = run.refresh()._repr_html_()
    assert "FAILED" in shown
    assert "&lt;script&gt;" in shown
    assert not any(markup in shown for markup in ("<script>", "<i>", "<t>"))
    assert "<td>2</td>" in fleet.group(["a", "b"])._repr_html_()
    assert server.url in fleet._repr_html_()

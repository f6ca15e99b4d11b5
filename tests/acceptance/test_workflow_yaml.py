"""A workflow file travels all the way; and the ways in which other servers have been fooled by one lead nowhere."""

import hashlib
from pathlib import Path

import httpx
import pytest

from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import wait_ended
from fleet_testkit.wire import Wire

EXAMPLE = Path(__file__).parents[2] / "examples" / "flow.yaml"

BRANCHES = """
version: 1
flow:
  graph: |
    sort >> switch(on="scratch.size"){ small: pipe(by_bicycle); default: book_van }
      >> foreach(over=items, item=item){ pack } >> last: send
  defaults:
    items: [a cup, a spoon]
pipes:
  by_bicycle: book_bicycle
tasks:
  sort: {callable: "branching:sort_order"}
  book_van: {callable: "branching:book_van"}
  book_bicycle: {callable: "branching:book_bicycle"}
  pack: {callable: "branching:pack"}
  send: {callable: "branching:send"}
"""
ONE_TASK = "flow: {{graph: {graph!r}}}\ntasks: {{it: {{callable: '{callable}'}}}}\n"


def post(stack: Fleet, file: str, flow_name: str = "from-yaml") -> httpx.Response:
    files = {"workflow": ("flow.yaml", file.encode(), "application/x-yaml")}
    return stack.client.post("/runs/yaml", files=files, data={"flow_name": flow_name})


def run(stack: Fleet, file: str) -> dict:
    answer = post(stack, file)
    assert answer.status_code == httpx.codes.OK, answer.text
    [ended] = wait_ended(stack.client, [answer.json()["run_id"]])
    return ended


@pytest.mark.also_composed("flows have a volume")
def test_the_example_file_runs_with_the_example_folder(stack: Fleet, wire: Wire) -> None:
    text = EXAMPLE.read_text()
    ended = run(stack, text)
    assert (ended["status"], ended["error"], ended["flow_name"]) == ("COMPLETED", None, "from-yaml")
    assert ended["params"] == {"name": "world"}
    assert ended["tasks"] == {"choose": "SUCCEEDED", "greet": "SUCCEEDED"}
    assert ended["task_records"]["greet"]["output"] == "Hello, world!"
    assert ended["workflow_yaml_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert ended["workflow_yaml_bytes"] == len(text.encode())
    assert b"hello:choose" not in wire.snapshot(ended["run_id"])[0]


def test_choices_loops_pipes_and_named_nodes_run(stack: Fleet) -> None:
    ended = run(stack, BRANCHES)
    assert (ended["status"], ended["error"]) == ("COMPLETED", None)
    assert ended["task_records"]["last"]["output"] == "2 parcels sent by bicycle"
    assert ended["tasks"]["book_van"] == "PENDING"
    # And of all the tasks that the worker knows, no other has run.
    assert ended["tasks"].keys() == {"sort", "book_van", "book_bicycle", "pack", "last"}


@pytest.mark.parametrize("callable", ["os:system", "subprocess:run", "builtins:exec", "fleet_worker.cli:main"])
def test_a_function_that_the_worker_does_not_allow_is_not_called(stack: Fleet, callable: str) -> None:
    ended = run(stack, ONE_TASK.format(graph="it", callable=callable))
    assert (ended["status"], ended["reason"], ended["tasks"]) == ("FAILED", "callable_not_allowed", {})
    assert f"PYOCO_WORKFLOW_CALLABLE_ALLOW={callable.partition(':')[0]}" in ended["error"]


@pytest.mark.also_composed("secrets")
def test_the_workers_environment_is_not_for_reading(stack: Fleet) -> None:
    file = "flow: {graph: it}\ntasks: {it: {callable: 'hello:choose', inputs: {name: $env.PATH}}}\n"
    ended = run(stack, file)
    assert (ended["status"], ended["reason"]) == ("FAILED", "reference_not_allowed")


def test_python_in_the_graph_is_refused_and_not_executed(stack: Fleet, tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    for code in (f"__import__('pathlib').Path('{proof}').touch()", f"open('{proof}', 'w')", f"exec('open({proof})')"):
        answer = post(stack, ONE_TASK.format(graph=code, callable="hello:choose"))
        assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
        assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0002"
    assert not proof.exists()


@pytest.mark.parametrize("size", [262_145, 2_000_000])
def test_a_file_above_the_limit_is_refused_by_the_first_that_sees_it(stack: Fleet, size: int) -> None:
    answer = post(stack, "#" * size)
    assert answer.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE
    assert answer.json()["error"]["meta"]["err_id"] == "ERR-PYOCO-0016"
    assert "bytes" in answer.json()["detail"]

"""Undocumented parts of pyoco that the runner relies on: as they were, and of a pinned range of versions."""

import inspect
import tomllib
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from pyoco.core import engine
from pyoco.core.context import Context
from pyoco.core.models import RunContext, Task
from pyoco.dsl.expressions import Expression

from fleet_worker.runner import pyoco_context

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def test_the_range_of_versions_has_an_end() -> None:
    [wanted] = [found for text in PROJECT["dependencies"] if (found := Requirement(text)).name == "pyoco"]
    assert "<" in {one.operator for one in wanted.specifier}
    assert wanted.specifier.contains(version("pyoco"))


def test_the_methods_that_are_overridden_are_still_called_so() -> None:
    assert list(inspect.signature(RunContext._safe_value).parameters) == ["self", "value"]
    assert list(inspect.signature(RunContext.append_log).parameters) == ["self", "task_name", "stream", "payload"]
    assert list(inspect.signature(Context.set_result).parameters) == ["self", "node_name", "value"]


def test_the_engine_takes_everything_of_a_task_from_what_it_executes() -> None:
    assert list(inspect.signature(engine.Engine._execute_task).parameters) == ["self", "task", "ctx", "log_capture"]
    for caller in (engine.Engine._run_flow, engine.Engine._execute_node):
        assert "self._execute_task" in inspect.getsource(caller)
    assert list(inspect.signature(Context.resolve).parameters) == ["self", "value"]
    assert {"func", "name", "inputs", "outputs", "retries"} <= {field.name for field in fields(Task)}


def test_the_engine_makes_its_contexts_of_the_class_that_is_replaced() -> None:
    assert engine.Context is pyoco_context.FleetContext
    assert "Context(" in inspect.getsource(engine.Engine)


def test_an_expression_evaluates_the_code_that_the_runner_replaces() -> None:
    expression = Expression("1 + 1")
    object.__setattr__(expression, "_code", compile("1 + 2", "<expression>", "eval"))
    assert expression.evaluate() == 3

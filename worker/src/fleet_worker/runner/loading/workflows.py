"""Builds flows from workflow files (flow.yaml), with only the tasks that a file defines and uses."""

from collections.abc import Iterator
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pyoco import Flow
from pyoco.core.models import Task
from pyoco.dsl.graph import build_flow_from_graph

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.workflow import WorkflowFile
from fleet_kit.files.strict_yaml import BadYaml, read_yaml, shown_path

from ...boundary.frames import Setup
from .callables import Callables
from .expressions import BoundedExpression, expressions_of, references_of
from .flows import FlowBroken, FlowNotFound

_SETTING = "PYOCO_WORKFLOW_ENV_ALLOW"


class ReferenceNotAllowed(FlowNotFound):
    """The workflow file refers to an environment variable or a private name that it may not use."""

    reason = DeadLetterReason.REFERENCE_NOT_ALLOWED


class Workflows:
    def __init__(self, setup: Setup) -> None:
        # With a flow resolver, there is no flow folder to allow.
        folders = [Path(setup.flows_dir)] if setup.flows_dir is not None and setup.flow_resolver is None else []
        wheels = [Path(path) for path in setup.wheel_paths or []]
        self._callables = Callables(folders, setup.callable_allow, wheels)
        self._env_allow = setup.env_allow

    def build(self, text: str, *, name: str) -> Flow:
        """Build a new flow from the text of a file. Raises FlowNotFound if this worker cannot."""
        file = _read(text)
        try:
            flow = build_flow_from_graph(
                graph=file.flow.graph, tasks=_Tasks(file, self._callables), pipes=file.pipes, flow_name=name
            )
            _bound_expressions(flow.build_program())
        except (ValueError, RecursionError, MemoryError) as error:
            raise FlowBroken("the workflow's graph cannot be used", f": {error}") from error
        if not flow.has_control_flow() and len(flow.build_program().steps) > len(flow.tasks):
            raise FlowNotFound("the workflow's graph cannot be used: it is a cycle")
        for reference in _references(flow):
            self._check(reference)
        return flow

    def _check(self, reference: str) -> None:
        """Refuse references to environment variables that are not allowed, and to names that begin with __."""
        root, *names = reference.split(".")
        if root == "$env" and names[0] not in self._env_allow:
            raise ReferenceNotAllowed(
                f"{reference} is not allowed; add the variable to {_SETTING} on the worker, "
                f"e.g. {_SETTING}={names[0]}"
            )
        if any(name.startswith("__") for name in names):
            raise ReferenceNotAllowed(f"{reference} is not allowed: names that begin with __ are private")


class _Tasks(dict[str, Task]):
    """Makes a task when the graph names it, so that nothing is imported that is not used."""

    def __init__(self, file: WorkflowFile, callables: Callables) -> None:
        super().__init__()
        self._file = file
        self._callables = callables
        self._in_making: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self and name in self._file.tasks:
            self._in_making.add(name)
            self[name] = self._make(name)
            self._in_making.discard(name)
        return super().get(name, default)

    def _make(self, name: str) -> Task:
        wanted = self._file.tasks[name]
        if wanted.callable is not None:
            task = Task(func=self._callables.load(wanted.callable), name=name)
        else:
            assert wanted.use is not None
            task = copy(self._used(wanted.use))
            task.name, task.dependencies, task.dependents = name, set(), set()
        task.inputs = {**deepcopy(task.inputs), **wanted.inputs}
        task.outputs = [*task.outputs, *wanted.outputs]
        return task

    def _used(self, name: str) -> Task:
        """Another task of the file; a plug-in's task if the file has none, or only the one that is being made."""
        if name in self._file.tasks and name not in self._in_making:
            return self.get(name)
        return self._callables.load_plugin_task(name)


def _read(text: str) -> WorkflowFile:
    try:
        return WorkflowFile.model_validate(read_yaml(text).value)
    except BadYaml as error:
        raise FlowBroken("the workflow file cannot be used", f": line {error.line}: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        details = f": {shown_path(first['loc'])}: {first['msg']}"
        raise FlowBroken("the workflow file cannot be used", details) from error


def _references(flow: Flow) -> Iterator[str]:
    """Everything that Pyoco will look up while it runs the flow: `$env.HOME`, `$ctx.params.x`, `$node.a.output`."""
    for task in flow.tasks:
        yield from (value for value in task.inputs.values() if isinstance(value, str) and value.startswith("$"))
    for _, _, expression in expressions_of(flow.build_program()):
        yield from references_of(expression)


def _bound_expressions(program: Any) -> None:
    """Check the expressions again in the worker: the server that let them through may not be ours."""
    for node, name, expression in list(expressions_of(program)):
        setattr(node, name, BoundedExpression(expression.source))

"""The params of a flow: which tasks take them, as what type, and what is wrong with those of a run."""

import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyoco import Flow
from pyoco.core.models import Task
from pyoco.dsl.nodes import DEFAULT_CASE_VALUE, ForEachNode, RepeatNode, SwitchNode, TaskNode, UntilNode

from .annotations import EMPTY, Converter, DoesNotFit, annotation_of, converter_of
from .expressions import expressions_of, references_of
from .graphs import in_order

_PARAMS = "$ctx.params"
# Above this, it is not looked up which task comes before which.
_MOST_TASKS = 500
_MOST_PROBLEMS = 5
_KEPT_AS = "_fleet_signature"


class ParamsRefused(Exception):
    """The flow cannot be run with these params; the message says why."""


@dataclass(frozen=True, slots=True)
class Given:
    """In place of a task's input: a converted param."""

    param: str
    submitted: Any
    converted: Any


@dataclass(frozen=True, slots=True)
class Use:
    """A param goes to this argument of this task."""

    param: str
    task: str
    argument: str
    default: Any = EMPTY
    converter: Converter | None = None
    is_required: bool = False
    # Without the param, the argument gets the result of the task of its name.
    replaces_result: bool = False
    # JSON Schema where there is no converter.
    schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class Signature:
    uses: list[Use]
    # A task may look at any param.
    is_open: bool

    @classmethod
    def of(cls, flow: Flow) -> "Signature":
        return _Reader(flow).read()

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(use.param for use in self.uses)

    @cached_property
    def _required(self) -> list[Use]:
        return [use for use in self.uses if use.is_required]

    @cached_property
    def _converted(self) -> list[tuple[Use, Converter]]:
        return [(use, use.converter) for use in self.uses if use.converter is not None]

    def convert(self, params: Mapping[str, Any], *, is_complete: bool) -> dict[str, dict[str, Given]]:
        """The inputs of tasks for which a param is converted. Raises ParamsRefused.

        Without `is_complete`, only values that do not fit are refused.
        """
        problems = list(self._misfits(params)) if is_complete else []
        inputs: dict[str, dict[str, Given]] = {}
        for use, converter in self._converted:
            if use.param not in params:
                continue
            submitted = params[use.param]
            try:
                converted = converter.convert(submitted)
            except DoesNotFit as error:
                problems.append(f"param {use.param!r} does not fit the task {use.task!r}: {error}")
                continue
            if converted is not submitted:
                inputs.setdefault(use.task, {})[use.argument] = Given(use.param, submitted, converted)
        if problems:
            raise ParamsRefused("; ".join(problems[:_MOST_PROBLEMS]))
        return inputs

    def _misfits(self, params: Mapping[str, Any]) -> Iterator[str]:
        for use in self._required:
            if use.param not in params:
                yield f"param {use.param!r} is missing: the task {use.task!r} needs it"
        if not self.is_open and not params.keys() <= self.names:
            for name in sorted(params.keys() - self.names):
                yield f"no task takes the param {name!r}; {self._suggestion(name)}"

    def _suggestion(self, name: str) -> str:
        own = sorted({use.param for use in self.uses if not use.replaces_result})
        if near := difflib.get_close_matches(name, own, n=1) or difflib.get_close_matches(name, self.names, n=1):
            return f"did you mean {near[0]!r}?"
        return f"the flow takes: {', '.join(own)}" if own else "the flow takes no params"


def signature_of(flow: Flow) -> Signature:
    """The flow's signature, kept with the flow: many flows are run again and again."""
    kept: tuple[int, Signature] | None = vars(flow).get(_KEPT_AS)
    if kept is None or kept[0] != len(flow.tasks):
        kept = vars(flow)[_KEPT_AS] = (len(flow.tasks), Signature.of(flow))
    return kept[1]


class _Reader:
    """Follows Pyoco's rule: an argument gets its configured input, else the param of its name, else the result."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._tasks = in_order(flow)
        self._has_control_flow = flow.has_control_flow()
        self._certain = _certain_tasks(flow)
        self._results = {task.name for task in self._tasks}
        self._outputs = {path for task in self._tasks for path in _written(task)}
        self._parameters = {task.name: _parameters(task) for task in self._tasks}
        self._with_ctx = {name for name, found in self._parameters.items() if found is None or "ctx" in found}

    def read(self) -> Signature:
        uses = [use for task in self._tasks for use in self._uses_of(task)]
        opens = any(found is None or _takes_any(found) for found in self._parameters.values())
        for use in self._uses_of_expressions():
            if use.param:
                uses.append(use)
            else:
                opens = True
        return Signature(uses, is_open=opens or bool(self._with_ctx))

    def _uses_of(self, task: Task) -> Iterator[Use]:
        parameters = self._parameters[task.name] or {}
        for argument, value in task.inputs.items():
            if isinstance(value, str) and value.startswith(f"{_PARAMS}."):
                param = value.removeprefix(f"{_PARAMS}.")
                yield Use(
                    param,
                    task.name,
                    argument,
                    converter=self._converter(task, parameters.get(argument)),
                    is_required=self._is_certain(task) and not self._is_written(param, task),
                )
        for name, parameter in parameters.items():
            if name in task.inputs or name == "ctx" or parameter.kind in _VARIADIC:
                continue
            has_default = parameter.default is not EMPTY
            is_result = name in self._results and name != task.name
            is_filled = has_default or is_result or self._is_written(name, task)
            yield Use(
                name,
                task.name,
                name,
                parameter.default,
                self._converter(task, parameter),
                is_required=not is_filled and self._is_certain(task),
                replaces_result=is_result,
            )

    def _uses_of_expressions(self) -> Iterator[Use]:
        program = self._flow.build_program()
        top = {id(step) for step in program.steps}
        for node, _, expression in expressions_of(program):
            for reference in references_of(expression):
                if reference == _PARAMS:
                    yield Use("", "", "")
                elif reference.startswith(f"{_PARAMS}."):
                    param = reference.removeprefix(f"{_PARAMS}.").partition(".")[0]
                    is_sure = id(node) in top and not self._with_ctx and not self._writes(param)
                    is_all = expression.source.strip() == f"{_PARAMS}.{param}"
                    schema = _schema_at(node) if is_sure and is_all else None
                    yield Use(param, type(node).__name__, "", is_required=is_sure, schema=schema)

    def _converter(self, task: Task, parameter: inspect.Parameter | None) -> Converter | None:
        return None if parameter is None else converter_of(annotation_of(task.func, parameter))

    def _is_certain(self, task: Task) -> bool:
        return task.fail_policy != "isolate" and (self._certain is None or task.name in self._certain)

    def _writes(self, param: str) -> bool:
        return param in self._outputs

    def _is_written(self, param: str, task: Task) -> bool:
        """Whether a task before this one may set the param, or a result of this name."""
        if self._writes(param):
            return True
        if not self._with_ctx:
            return False
        if self._has_control_flow or len(self._tasks) > _MOST_TASKS:
            return bool(self._with_ctx - {task.name})
        before, found = set(), [task]
        while found:
            new = [one for one in found.pop().dependencies & self._flow.tasks if one.name not in before]
            before |= {one.name for one in new}
            found += new
        return not self._with_ctx.isdisjoint(before)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(task: Task) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(task.func).parameters
    except (ValueError, TypeError, NameError):
        return None


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def _written(task: Task) -> Iterable[str]:
    """The names of params and results that the task's outputs set."""
    for path in task.outputs:
        root, *names = path.split(".")
        if root in ("params", "results") and names:
            yield names[0]


def _certain_tasks(flow: Flow) -> set[str] | None:
    """The tasks that every run executes, as no branch or loop decides on them; None: all of them."""
    if not flow.has_control_flow():
        return None
    certain, found = set(), [flow.build_program()]
    while found:
        node = found.pop()
        if isinstance(node, TaskNode):
            certain.add(node.task.name)
        elif isinstance(node, UntilNode):
            found.append(node.body)
        else:
            found += getattr(node, "steps", [])
    return certain


def _schema_at(node: Any) -> dict[str, Any] | None:
    """The values of a param that this node itself can use."""
    if isinstance(node, ForEachNode):
        return {"type": "array"}
    if isinstance(node, RepeatNode):
        return {"type": "integer", "minimum": 0}
    if isinstance(node, SwitchNode) and all(case.value != DEFAULT_CASE_VALUE for case in node.cases):
        return {"enum": [case.value for case in node.cases]}
    return None

"""The schema of a workflow file (flow.yaml), shared by the service that accepts it and the worker."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from .names import LINE_PATTERN


def _empty_if_null(kind: type) -> BeforeValidator:
    """Accept null for an empty value: `inputs:` without a value."""
    return BeforeValidator(lambda value: kind() if value is None else value)


def _one_line(name: str) -> str:
    if re.fullmatch(LINE_PATTERN, name) is None:
        raise ValueError("must be one line without control characters")
    return name


Values = Annotated[dict[str, Any], _empty_if_null(dict)]
Texts = Annotated[dict[str, str], _empty_if_null(dict)]
Names = Annotated[list[Annotated[str, AfterValidator(_one_line)]], _empty_if_null(list)]


class _Part(BaseModel):
    # A misspelt key must not be ignored silently.
    model_config = ConfigDict(extra="forbid")


class WorkflowTask(_Part):
    """Where a task comes from: a function (`callable`), or a task that a plug-in or another line offers (`use`)."""

    callable: str | None = None
    use: Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_one_line)] | None = None
    inputs: Values = {}
    outputs: Names = []

    @field_validator("callable")
    @classmethod
    def _is_module_and_function(cls, value: str | None) -> str | None:
        if value is not None:
            split_callable(value)
        return value

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.callable is None) == (self.use is None):
            raise ValueError("give either callable or use" + ("" if self.callable is None else ", not both"))
        return self


class WorkflowFlow(_Part):
    graph: Annotated[str, StringConstraints(min_length=1)]
    defaults: Values = {}


class WorkflowRuntime(_Part):
    expose_env: Names = []


class WorkflowFile(_Part):
    version: Literal[1] = 1
    flow: WorkflowFlow
    tasks: Annotated[dict[str, WorkflowTask], Field(min_length=1)]
    pipes: Texts = {}
    runtime: Annotated[WorkflowRuntime, _empty_if_null(dict)] = WorkflowRuntime()


def split_callable(spec: str) -> tuple[str, str]:
    """Module and function of `package.module:function`. ValueError if it is anything else."""
    module, separator, function = spec.partition(":")
    names = [*module.split("."), function]
    if not separator or not all(name.isidentifier() for name in names):
        raise ValueError(f'"{spec[:100]}" is no module:function')
    return module, function

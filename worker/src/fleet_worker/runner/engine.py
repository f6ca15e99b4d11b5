"""Pyoco's engine, which gives tasks their params as the types that they are annotated with."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyoco.core.engine import Engine
from pyoco.core.models import Task

# The contexts that the engine makes then are those that know what `Given` is.
from . import pyoco_context  # noqa: F401
from .params import Given
from .recording import Recorder


class ConvertingEngine(Engine):  # type: ignore[misc]
    def __init__(self, recorder: Recorder, inputs: Mapping[str, Mapping[str, Given]]) -> None:
        super().__init__(recorder)
        self._inputs = inputs

    def _execute_task(self, task: Task, *others: Any) -> None:
        if (given := self._inputs.get(task.name)) is not None:
            # A copy: the task belongs to the flow, and other runs have other params.
            task = replace(task, inputs={**task.inputs, **given})
        super()._execute_task(task, *others)

"""Pyoco's engine for the runner: gives tasks their params as the types they are annotated with, awaits coroutines."""

import functools
import inspect
import time
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from pyoco.core.engine import Engine
from pyoco.core.models import Task, TaskState

from .coroutines import Coroutines, TaskCancelled
from .loading.params import Given
from .pyoco_context import FleetContext
from .recording.recorder import Recorder


class FleetEngine(Engine):  # type: ignore[misc]
    def __init__(self, recorder: Recorder, coroutines: Coroutines, inputs: Mapping[str, Mapping[str, Given]]) -> None:
        super().__init__(recorder)
        self._inputs = inputs
        self._recorder = recorder
        self._coroutines = coroutines

    def _execute_task(self, task: Task, ctx: FleetContext, log_capture: Any = None) -> None:
        # A copy: the task belongs to the flow, and other runs have other params.
        awaited = copy(task)
        awaited.func = self._awaiting(task, ctx)
        if (given := self._inputs.get(task.name)) is not None:
            awaited.inputs = {**task.inputs, **given}
        if ctx.loop is not None:
            self._recorder.on_iteration(task.name, ctx.loops)
        try:
            # Without pyoco's own capture, which would keep a second copy of the output.
            super()._execute_task(awaited, ctx)
        except TaskCancelled:
            record = ctx.run_context.ensure_task_record(task.name)
            record.state = ctx.run_context.tasks[task.name] = TaskState.CANCELLED
            record.ended_at = time.time()
            record.duration_ms = (record.ended_at - record.started_at) * 1000
            self._recorder.on_node_cancelled(task.name)

    def _awaiting(self, task: Task, ctx: FleetContext) -> Callable[..., Any]:
        """The task's function, as one that returns when the coroutine is done if it returns one."""
        # Pyoco counts a task's time with all its retries as well.
        deadline = time.monotonic() + task.timeout_sec if task.timeout_sec else None

        def call(*args: Any, **kwargs: Any) -> Any:
            result = task.func(*args, **kwargs)
            if not inspect.iscoroutine(result):
                return result
            sentence = f"Task '{task.name}' exceeded timeout of {task.timeout_sec}s"
            return self._coroutines.run(
                result, is_cancelled=lambda: ctx.is_cancelled, deadline=deadline, sentence=sentence
            )

        try:
            call.__signature__ = _signature_of(task.func)  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            # It has none, or is not hashable: the engine looks itself, and fails the task if it must.
            call.__wrapped__ = task.func  # type: ignore[attr-defined]
        return call


@functools.lru_cache(maxsize=64)
def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Kept, because pyoco asks for it whenever it executes a task; few, because functions may hold large values."""
    return inspect.signature(function)

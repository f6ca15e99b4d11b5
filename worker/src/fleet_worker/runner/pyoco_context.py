"""Pyoco's contexts for the runner: features that the fleet does not support yet raise an error."""

import inspect
from typing import Any, NoReturn

from pyoco.core import engine
from pyoco.core.context import Context
from pyoco.core.models import RunContext

from .loading.params import Given
from .recording.plain import json_safe


class NotSupported(Exception):
    """A task uses something that the fleet does not have yet; the message says what to do instead."""


class FleetRunContext(RunContext):  # type: ignore[misc]
    """Pyoco's run context with outputs made JSON-safe and without a second copy of the output."""

    # Also kept here: a task may catch the exception, and a flow may go on without a task that failed.
    refused: NotSupported | None = None

    def append_log(self, task_name: str, stream: str, payload: str) -> None:
        pass

    def _safe_value(self, value: Any) -> Any:
        return json_safe(value)


class FleetContext(Context):  # type: ignore[misc]
    def resolve(self, value: Any) -> Any:
        if not isinstance(value, Given):
            return super().resolve(value)
        # An earlier task may have changed the param.
        current = self.params.get(value.param)
        return value.converted if current is value.submitted else current

    def save_artifact(self, name: str, data: Any) -> str:
        self._refuse(
            f"ctx.save_artifact({name!r}, …) cannot be used: the fleet keeps no artifacts yet, the file would be "
            "gone with the run's folder; return the data, or write it to a place of your own"
        )

    def set_result(self, node_name: str, value: Any) -> None:
        if inspect.iscoroutine(value):
            value.close()  # else Python warns that it was never awaited
            self._refuse(f"task {node_name!r} has returned a coroutine from a coroutine; await it before you return")
        if inspect.isasyncgen(value):
            self._refuse(
                f"task {node_name!r} is an asynchronous generator (`async def` with `yield`): nothing of it was "
                "executed; make it an `async def` function that returns a list"
            )
        super().set_result(node_name, value)

    def _refuse(self, sentence: str) -> NoReturn:
        error = NotSupported(sentence)
        if isinstance(self.run_context, FleetRunContext):
            self.run_context.refused = error
        raise error


# The engine creates the context of a run itself and accepts no other, so its class is replaced.
engine.Context = FleetContext

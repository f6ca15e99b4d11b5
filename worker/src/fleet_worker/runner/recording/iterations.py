"""The record of each iteration of a task in a loop; of many, the first and the last ones."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from pyoco.core.context import LoopFrame

from fleet_contracts.status import TaskStatus

from .plain import json_safe
from .results import is_larger

_KEPT_AT_EACH_END = 50
_ITEM_BYTES = 256


class Iterations:
    def __init__(self) -> None:
        self._count = 0
        self._first: list[dict[str, Any]] = []
        self._last: deque[dict[str, Any]] = deque(maxlen=_KEPT_AT_EACH_END)
        self._current: dict[str, Any] = {}

    def begin(self, loops: Sequence[LoopFrame], item: Any, *, now: float) -> None:
        """The task is executed within these loops, the innermost last; `item` is the shown form of that one's."""
        entry: dict[str, Any] = {"index": self._count}
        if loops[-1].type == "foreach":
            entry["item"] = item
        if len(loops) > 1:
            entry["loop"] = loops[-1].path
        self._current = entry | {"state": TaskStatus.RUNNING.value, "started_at": now, "ended_at": None}
        (self._first if self._count < _KEPT_AT_EACH_END else self._last).append(self._current)
        self._count += 1

    def end(self, status: TaskStatus, error: str | None, *, now: float) -> None:
        self._current |= {
            "state": status.value,
            "ended_at": now,
            "duration_ms": (now - self._current["started_at"]) * 1000,
            "error": error,
        }

    def fields(self) -> dict[str, Any]:
        """What is added to the task's record."""
        return {"iterations": [*self._first, *self._last], "iteration_count": self._count}


def shown(item: Any) -> Any:
    return f"<{type(item).__name__}: too large to be shown>" if is_larger(item, _ITEM_BYTES) else json_safe(item)

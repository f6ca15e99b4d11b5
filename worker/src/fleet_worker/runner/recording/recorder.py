"""Records task states and output of a run in the runner, to be sent in batches."""

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol

from pyoco.core.context import LoopFrame
from pyoco.trace.backend import TraceBackend

from fleet_contracts.events import EventKind
from fleet_contracts.status import TaskStatus
from fleet_kit.logs.json_values import describe

from ...boundary.frames import LOG_CHUNK_CHARACTERS, Progress
from ...boundary.masking import SECRETS
from .iterations import Iterations, shown
from .threads import carry_into_threads

# The exceptions of at most this many failed tasks of a run are kept.
_MOST_RAISED = 20
_NO_TASK: tuple["Recorder | None", str | None] = (None, None)
# The run's recorder and the task; a thread that a run has left behind may print during the next run.
_current: ContextVar[tuple["Recorder | None", str | None]] = ContextVar("task", default=_NO_TASK)


def follow_threads() -> None:
    """Let what plain threads and pools say be of the task that has started or asked them. For the whole process."""
    carry_into_threads(_current)


class OutsideOutput(Protocol):
    """What subprocesses and native code write: recorded before what follows it."""

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    def drain(self) -> None: ...

    def flush(self) -> None:
        """Also what native code keeps in a buffer of its own."""


class Recorder(TraceBackend):  # type: ignore[misc]
    """Pyoco calls the hooks in the thread that executes the task: output finds its task by a context variable.

    Coroutines, their asyncio tasks and `asyncio.to_thread` inherit it, threads and pools by `follow_threads`.
    """

    def __init__(
        self, task_names: Iterable[str], *, log_max_bytes: int, outside: OutsideOutput | None = None
    ) -> None:
        # Reentrant: a finalizer that prints may run in any of our calls. Shared: it may be run with either lock held,
        # and then takes the other.
        self._lock = threading.RLock() if outside is None else outside.lock
        self._outside = outside
        self._events: list[dict[str, Any]] = []
        self._executing: set[str] = set()
        self._tasks = dict.fromkeys(task_names, TaskStatus.PENDING)
        self._records: dict[str, dict[str, Any]] = {}
        self._iterations: dict[str, Iterations] = {}
        self._raised: dict[str, Exception] = {}
        self._tasks_changed = False
        self._log_bytes_left = log_max_bytes
        self._log_max_bytes = log_max_bytes

    def on_flow_start(self, flow_name: str, run_id: str | None = None) -> None:
        pass

    def on_flow_end(self, flow_name: str) -> None:
        pass

    def on_node_start(self, node_name: str) -> None:
        if self._outside is not None:
            self._outside.drain()
        now = time.time()
        _current.set((self, node_name))
        with self._lock:
            self._executing.add(node_name)
            self._enter(node_name, TaskStatus.RUNNING, now)
            self._records[node_name] = {"state": TaskStatus.RUNNING.value, "started_at": now, "ended_at": None}

    def on_iteration(self, node_name: str, loops: Sequence[LoopFrame]) -> None:
        """Called by our engine before the start of a node that is in loops."""
        # Outside of the lock: code of the item may log, and another thread may log and wait for the lock.
        item = shown(loops[-1].item) if loops[-1].type == "foreach" else None
        with self._lock:
            self._iterations.setdefault(node_name, Iterations()).begin(loops, item, now=time.time())

    def on_node_end(self, node_name: str, duration_ms: float) -> None:
        self._leave(node_name, TaskStatus.SUCCEEDED, None)

    def on_node_error(self, node_name: str, error: Exception) -> None:
        with self._lock:
            if len(self._raised) < _MOST_RAISED:
                self._raised[node_name] = error
        self._leave(node_name, TaskStatus.FAILED, f"{type(error).__name__}: {describe(error, str)}")

    def on_node_cancelled(self, node_name: str) -> None:
        """Called by our engine: pyoco itself cancels only what has not begun."""
        self._leave(node_name, TaskStatus.CANCELLED, None)

    def write(self, stream: str, text: str, level: str | None = None) -> None:
        """Output of the task that this thread or coroutine executes."""
        if self._outside is not None and text != "\n":  # print writes it apart, at once after its text
            self._outside.drain()
        with self._lock:
            recorder, task = _current.get()
            if recorder is None:  # a thread that no task has started
                task = self._only_task()
            elif recorder is not self:
                return  # left behind by a run before
            self._write(task, stream, text, level)

    def write_from_outside(self, stream: str, text: str) -> None:
        """Output of a subprocess or of native code."""
        with self._lock:
            self._write(self._only_task(), stream, text, None)

    def drain(self) -> Progress | None:
        """The events since the last call, and the tasks if any changed; None if there are no events."""
        with self._lock:
            if not self._events:
                return None
            events, self._events = self._events, []
            if not self._tasks_changed:
                return Progress(events)
            self._tasks_changed = False
            records = {name: dict(record) for name, record in self._records.items()}
            for name, iterations in self._iterations.items():
                if name in records:  # not before its first iteration has begun
                    records[name] |= iterations.fields()
            return Progress(events, dict(self._tasks), records)

    def iterations(self) -> dict[str, dict[str, Any]]:
        """What is added to the records of tasks in loops."""
        with self._lock:
            return {name: iterations.fields() for name, iterations in self._iterations.items()}

    def errors(self) -> dict[str, str]:
        with self._lock:
            return {name: error for name, record in self._records.items() if (error := record.get("error"))}

    def raised(self) -> list[tuple[str, Exception]]:
        """The failed tasks with their exceptions; of many, the first."""
        with self._lock:
            return list(self._raised.items())

    def _enter(self, task: str, status: TaskStatus, now: float) -> None:
        self._tasks[task] = status
        self._tasks_changed = True
        self._events.append({"at": now, "kind": EventKind.TASK.value, "task": task, "status": status.value})

    def _leave(self, task: str, status: TaskStatus, error: str | None) -> None:
        if self._outside is not None:
            self._outside.flush()
        now = time.time()
        _current.set(_NO_TASK)
        with self._lock:
            if self._tasks.get(task) == status:
                return  # the engine reports the error of an isolated task twice
            self._executing.discard(task)
            self._enter(task, status, now)
            record = self._records.setdefault(task, {"started_at": now})
            record |= {
                "state": status.value,
                "ended_at": now,
                "duration_ms": (now - record["started_at"]) * 1000,
                "error": error,
            }
            if (iterations := self._iterations.get(task)) is not None:
                iterations.end(status, error, now=now)

    def _only_task(self) -> str | None:
        """The running task; None if there are others beside it."""
        return next(iter(self._executing)) if len(self._executing) == 1 else None

    def _write(self, task: str | None, stream: str, text: str, level: str | None) -> None:
        if not text.isascii():
            text = text.encode(errors="backslashreplace").decode()
        if (kept := self._within_limit(SECRETS.mask(text))) is not None:
            for start in range(0, len(kept), LOG_CHUNK_CHARACTERS):
                self._append(task, stream, kept[start : start + LOG_CHUNK_CHARACTERS], level)

    def _within_limit(self, text: str) -> str | None:
        """The text, cut to what is left of the run's output limit; None if nothing is left."""
        if self._log_bytes_left < 0:
            return None
        size = len(text) if text.isascii() else len(text.encode())
        if size <= self._log_bytes_left:
            self._log_bytes_left -= size
            return text
        kept = text.encode()[: self._log_bytes_left].decode(errors="ignore")
        self._log_bytes_left = -1
        return f"{kept}\n[output beyond {self._log_max_bytes} bytes is not kept]\n"

    def _append(self, task: str | None, stream: str, text: str, level: str | None) -> None:
        # A logged message is an event of its own.
        if level is None and self._events:
            last = self._events[-1]
            if last.get("stream") == stream and last["task"] == task and "level" not in last:
                joined = last["text"] + text
                if len(joined) <= LOG_CHUNK_CHARACTERS:
                    last["text"] = joined
                    return
        event = {"at": time.time(), "kind": EventKind.LOG.value, "task": task, "stream": stream, "text": text}
        self._events.append(event if level is None else {**event, "level": level})

"""The protocol between agent and runner: length-prefixed JSON frames over a socket pair."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

import orjson

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_kit.logs.json_values import make_plain

_LENGTH = struct.Struct(">I")
# One event stays well below NATS's maximum payload, even when every character is escaped.
LOG_CHUNK_CHARACTERS = 32 * 1024
_ENCODING = orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True, slots=True)
class Setup:
    """Agent to runner, the first frame: where flows and run folders are, what workflow files may use, limits."""

    flow_resolver: str | None
    flows_dir: str | None
    runs_dir: str
    # Modules that workflow files may use besides those of the flow folder, and variables that they may read.
    callable_allow: list[str] = field(default_factory=list)
    env_allow: list[str] = field(default_factory=list)
    # Where synced wheels are installed; None: wheels are not synced, so flows have to be somewhere else.
    wheel_paths: list[str] | None = None
    # Import all flows of wheels for the catalogue; else only what a run asks for.
    describes_wheels: bool = False
    # Memory limit of a run, on top of an idle runner's use; 0: no limit.
    memory_max_bytes: int = 0
    # The flows folder as messages name it: `flows_dir` may be a copy.
    flows_shown_as: str | None = None
    # Where the libraries of the flows folder are installed.
    library_paths: list[str] = field(default_factory=list)
    # Values that leave the runner as `***` only.
    secrets: list[str] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class Run:
    """Agent to runner: execute this."""

    run_id: str
    flow_name: str
    # JSON text: the numbers in it must reach the flow as they were submitted.
    params: str
    folder: str
    log_max_bytes: int
    records_max_bytes: int
    # The workflow file to build the flow from; None: the worker knows the flow by its name.
    workflow_yaml: str | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Agent to runner: start nothing new in this run."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Agent to runner: exit when idle."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that was raised in a runner, described for the agent's log."""

    exc_type: str
    exc_message: str
    exc_traceback: str
    exc_origin: str
    # The traceback without the exceptions' messages, which may quote the data of a run.
    exc_frames: str = ""
    # A message for the log in place of "the flow raised …".
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """Runner to agent, once: the flows are loaded, or why they cannot be."""

    flows: list[str]
    # Files that could not be loaded, with what they raised.
    broken: dict[str, dict[str, str]] = field(default_factory=dict)
    error: str | None = None
    # The JSON form of a `Catalogue`.
    catalogue: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """Runner to agent, while a run goes on: what happened since the last one."""

    events: list[dict[str, Any]]
    # Present when a task changed its state.
    tasks: dict[str, TaskStatus] | None = None
    task_records: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How an attempt has ended. Runner to agent: the run is over and this runner is free.

    The agent itself concludes an attempt whose runner died, or which no runner has begun.
    """

    status: RunStatus
    error: str | None = None
    reason: DeadLetterReason | None = None
    # None: the snapshot keeps the states and records that it has.
    tasks: dict[str, TaskStatus] | None = None
    task_records: dict[str, Any] | None = None
    task_records_truncated: bool = False
    result: Any = None
    result_truncated: bool = False
    # The flow itself has failed, not the machinery around it: only such a failure is retried.
    flow_failed: bool = False
    # The exception that the flow, or the code that builds it, has raised.
    failure: dict[str, str] | None = None
    # Type and message of each failed task's exception.
    task_errors: dict[str, str] = field(default_factory=dict)
    # The exceptions of failed tasks other than the one that the run ended with; of many, the first.
    task_failures: dict[str, dict[str, str]] = field(default_factory=dict)
    # What happened since the last progress.
    events: list[dict[str, Any]] = field(default_factory=list)
    # Replace this runner: it left processes behind that had to be killed, or has little memory left.
    spent: bool = False


Frame = Setup | Run | Cancel | Stop | Ready | Progress | Conclusion
_KINDS: dict[str, type[Frame]] = {kind.__name__: kind for kind in get_args(Frame)}
_ENUMS: dict[str, Callable[[Any], Any]] = {
    "status": RunStatus,
    "reason": DeadLetterReason,
    "tasks": lambda tasks: {name: TaskStatus(state) for name, state in tasks.items()},
}


def encode(frame: Frame) -> bytes:
    kind = type(frame).__name__
    try:
        body = orjson.dumps((kind, frame), option=_ENCODING)
    except TypeError:
        # Text that is no Unicode, integers beyond 64 bits, objects without a JSON form.
        body = orjson.dumps((kind, make_plain(asdict(frame))))
    return _LENGTH.pack(len(body)) + body


class Decoder:
    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            end = _LENGTH.size + length
            if len(buffer) < end:
                return
            kind, fields = orjson.loads(memoryview(buffer)[_LENGTH.size : end].tobytes())
            del buffer[:end]
            yield _KINDS[kind](**{name: _typed(name, value) for name, value in fields.items()})


def _typed(name: str, value: Any) -> Any:
    """The value of a frame's field: JSON has enums as strings, and the names of these fields mean one thing each."""
    return value if value is None or (enum := _ENUMS.get(name)) is None else enum(value)

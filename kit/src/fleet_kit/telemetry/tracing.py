"""Spans of this process. Without a recorder none are recorded, and a received trace context is only propagated."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from enum import Enum, auto
from typing import Protocol, Self

from fleet_contracts.trace_context import TraceContext

Value = str | bool | int | float
Attributes = Mapping[str, Value | None]

# The trace context of the current request or job; log lines and messages carry it.
_current: ContextVar[TraceContext | None] = ContextVar("fleet_trace", default=None)
_recorder: "Recorder | None" = None


class Kind(Enum):
    INTERNAL = auto()
    SERVER = auto()
    PRODUCER = auto()
    CONSUMER = auto()


class Span:
    """A span that is not recorded: while it is entered, its trace context is the current one.

    `with span(…):` covers a piece of work from start to end. If the work ends elsewhere, `active()` makes the span
    current for a block, and `end()` ends it.
    """

    __slots__ = ("_token", "context")

    def __init__(self, context: TraceContext | None) -> None:
        self.context = context
        self._token: Token[TraceContext | None] | None = None

    def __enter__(self) -> Self:
        if self.context is not None:
            self._token = _current.set(self.context)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None
        if isinstance(error, Exception):
            self.fail(type(error).__name__, str(error))
        self.end()

    @contextmanager
    def active(self) -> Iterator[None]:
        token = _current.set(self.context) if self.context is not None else None
        try:
            yield
        finally:
            if token is not None:
                _current.reset(token)

    def rename(self, name: str) -> None:
        """Set the name, if it is known only after the start."""

    def set(self, name: str, value: Value | None) -> None:
        """Set an attribute; None is ignored."""

    def link(self, to: TraceContext, attributes: Attributes) -> None:
        """Link to another span; the attributes describe the link."""

    def fail(self, error_type: str, message: str | None = None) -> None:
        """Mark the span as failed."""

    def end(self, *, at: float | None = None) -> None:
        """End the span, now or at a time in unix seconds."""


class Recorder(Protocol):
    """Starts spans; it may decide not to record one."""

    def start(
        self,
        name: str,
        attributes: Attributes,
        *,
        kind: Kind,
        parent: TraceContext | None,
        begun_at: float | None,
    ) -> Span: ...


UNTRACED = Span(None)


def current() -> TraceContext | None:
    return _current.get()


def is_recording() -> bool:
    """Whether spans are recorded. Check it before costly work for a span."""
    return _recorder is not None


def record_with(recorder: Recorder | None) -> None:
    """Set the recorder of this process's spans; None stops recording."""
    global _recorder
    _recorder = recorder


def span(
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: Kind = Kind.INTERNAL,
    parent: TraceContext | None = None,
    begun_at: float | None = None,
    begins_trace: bool = False,
) -> Span:
    """A span inside the current trace, or inside that of `parent`.

    Outside of any trace it is recorded only if it `begins_trace`. `begun_at` is in unix seconds; the default is now.
    """
    context = parent if parent is not None else _current.get()
    if _recorder is None or (context is None and not begins_trace):
        return UNTRACED if parent is None else Span(parent)
    return _recorder.start(name, attributes or {}, kind=kind, parent=context, begun_at=begun_at)

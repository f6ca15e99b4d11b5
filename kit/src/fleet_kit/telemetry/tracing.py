"""Spans of this process. Without a recorder nothing is recorded, and a trace that others began is only carried on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from enum import Enum, auto
from typing import Protocol, Self

from fleet_contracts.trace_context import TraceContext

Value = str | bool | int | float
Attributes = Mapping[str, Value | None]

# What the current request or job belongs to; lines logged and messages written meanwhile carry it.
_current: ContextVar[TraceContext | None] = ContextVar("fleet_trace", default=None)
_recorder: "Recorder | None" = None


class Kind(Enum):
    INTERNAL = auto()
    SERVER = auto()
    PRODUCER = auto()
    CONSUMER = auto()


class Span:
    """One that is not recorded: while it is entered, the context that it was given is the current one.

    `with span(…):` is a piece of work from its beginning to its end. Where a piece of work does not end where it
    began, `active()` makes it current for a while, and `end()` ends it.
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
        """What it is called is known by now."""

    def set(self, name: str, value: Value | None) -> None:
        """Say something more about it; None says nothing."""

    def link(self, to: TraceContext, attributes: Attributes) -> None:
        """Lead to another span as well; these attributes say how."""

    def fail(self, error_type: str, message: str | None = None) -> None:
        """It did not go well."""

    def end(self, *, at: float | None = None) -> None:
        """It is over, now or since a moment in unix seconds."""


class Recorder(Protocol):
    """Records spans, or decides that one is not worth it."""

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
    """Somebody records spans here. Ask before going to any length for them."""
    return _recorder is not None


def record_with(recorder: Recorder | None) -> None:
    """From now on this process's spans go there."""
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
    """A piece of work inside the current trace, or inside `parent`'s.

    Only what `begins_trace` is recorded outside of any. `begun_at` is a moment in unix seconds; the default is now.
    """
    context = parent if parent is not None else _current.get()
    if _recorder is None or (context is None and not begins_trace):
        return UNTRACED if parent is None else Span(parent)
    return _recorder.start(name, attributes or {}, kind=kind, parent=context, begun_at=begun_at)

"""Spans by the OpenTelemetry API. Without a tracer none are recorded; a received trace context is only propagated.

The layer over the API is thin, and there for three rules: nothing is computed for a span while none are recorded,
periodic work outside of any trace begins none, and an exception is a bounded status instead of an event.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token
from typing import Self

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode

from fleet_contracts.spans import ERROR_TYPE
from fleet_contracts.trace_context import TraceContext

Kind = SpanKind
Value = str | bool | int | float
Attributes = Mapping[str, Value | None]

_LONGEST_MESSAGE = 500
_tracer: trace.Tracer | None = None


class Span:
    """A span, or a trace context that is only propagated: while it is entered, its context is the current one.

    `with span(…):` covers a piece of work from start to end. If the work ends elsewhere, `active()` makes the span
    current for a block, and `end()` ends it.
    """

    __slots__ = ("_span", "_token", "context")

    def __init__(self, context: TraceContext | None, recorded: trace.Span | None = None) -> None:
        self.context = context
        self._span = recorded or (INVALID_SPAN if context is None else NonRecordingSpan(_span_context(context)))
        self._token: Token[Context] | None = None

    def __enter__(self) -> Self:
        if self.context is not None:
            self._token = otel_context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._token is not None:
            otel_context.detach(self._token)
            self._token = None
        if isinstance(error, Exception):
            self.fail(type(error).__name__, str(error))
        self.end()

    @contextmanager
    def active(self) -> Iterator[None]:
        if self.context is None:
            yield
        else:
            with trace.use_span(self._span, record_exception=False, set_status_on_exception=False):
                yield

    def rename(self, name: str) -> None:
        """Set the name, if it is known only after the start."""
        self._span.update_name(name)

    def set(self, name: str, value: Value | None) -> None:
        """Set an attribute; None is ignored."""
        if value is not None:
            self._span.set_attribute(name, value)

    def link(self, to: TraceContext, attributes: Attributes) -> None:
        """Link to another span; the attributes describe the link."""
        self._span.add_link(_span_context(to), _known(attributes))

    def fail(self, error_type: str, message: str | None = None) -> None:
        self._span.set_attribute(ERROR_TYPE, error_type)
        self._span.set_status(Status(StatusCode.ERROR, message[:_LONGEST_MESSAGE] if message else None))

    def end(self, *, at: float | None = None) -> None:
        """End the span, now or at a time in unix seconds."""
        self._span.end(_nanoseconds(at))


UNTRACED = Span(None)


def current() -> TraceContext | None:
    """The trace context of the current request or job; log lines and messages carry it."""
    return _trace_context(trace.get_current_span())


def is_recording() -> bool:
    """Whether spans are recorded. Check it before costly work for a span."""
    return _tracer is not None


def record_with(tracer: trace.Tracer | None) -> None:
    """Set the tracer of this process's spans; None stops recording."""
    global _tracer
    _tracer = tracer


def span(
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: TraceContext | None = None,
    begun_at: float | None = None,
    begins_trace: bool = False,
) -> Span:
    """A span inside the current trace, or inside that of `parent`.

    Outside of any trace it is recorded only if it `begins_trace`. `begun_at` is in unix seconds; the default is now.
    """
    if _tracer is None or (parent is None and current() is None and not begins_trace):
        return UNTRACED if parent is None else Span(parent)
    recorded = _tracer.start_span(
        name,
        None if parent is None else trace.set_span_in_context(NonRecordingSpan(_span_context(parent))),
        kind=kind,
        attributes=_known(attributes or {}),
        start_time=_nanoseconds(begun_at),
        record_exception=False,
        set_status_on_exception=False,
    )
    return Span(_trace_context(recorded), recorded)


def _trace_context(span: trace.Span) -> TraceContext | None:
    known = span.get_span_context()
    if not known.is_valid:
        return None
    state = known.trace_state.to_header() or None
    return TraceContext(f"{known.trace_id:032x}", f"{known.span_id:016x}", known.trace_flags.sampled, state)


def _span_context(context: TraceContext) -> SpanContext:
    return SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED if context.is_sampled else trace.TraceFlags.DEFAULT),
        trace_state=trace.TraceState.from_header([context.tracestate]) if context.tracestate else None,
    )


def _known(attributes: Attributes) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}


def _nanoseconds(at: float | None) -> int | None:
    return None if at is None else int(at * 1e9)

"""Records spans with OpenTelemetry. Imported only when spans are exported: see `setup`."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Token

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from fleet_contracts.spans import ERROR_TYPE
from fleet_contracts.trace_context import TraceContext

from .tracing import Attributes, Kind, Span, Value

_KINDS = {
    Kind.INTERNAL: SpanKind.INTERNAL,
    Kind.SERVER: SpanKind.SERVER,
    Kind.PRODUCER: SpanKind.PRODUCER,
    Kind.CONSUMER: SpanKind.CONSUMER,
}
_LONGEST_MESSAGE = 500


class HashedOnce(Resource):
    """A resource with a cached hash: the exporter needs it for every span, and the library rebuilds it from JSON."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource.attributes, resource.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class SpanRecorder:
    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def start(
        self,
        name: str,
        attributes: Attributes,
        *,
        kind: Kind,
        parent: TraceContext | None,
        begun_at: float | None,
    ) -> Span:
        around = Context()
        if parent is not None:
            around = trace.set_span_in_context(NonRecordingSpan(_span_context(parent)), around)
        started = self._tracer.start_span(
            name,
            around,
            kind=_KINDS[kind],
            attributes=_told(attributes),
            start_time=None if begun_at is None else int(begun_at * 1e9),
            record_exception=False,
            set_status_on_exception=False,
        )
        return _RecordedSpan(started, tracestate=parent.tracestate if parent is not None else None)


class _RecordedSpan(Span):
    __slots__ = ("_attached", "_span")

    def __init__(self, span: trace.Span, *, tracestate: str | None) -> None:
        known = span.get_span_context()
        super().__init__(
            TraceContext(
                f"{known.trace_id:032x}", f"{known.span_id:016x}", known.trace_flags.sampled, tracestate, known
            )
        )
        self._span = span
        self._attached: Token[Context] | None = None

    def __enter__(self) -> "_RecordedSpan":
        # Also for libraries that create OpenTelemetry spans themselves.
        self._attached = otel_context.attach(trace.set_span_in_context(self._span))
        super().__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace_back: object) -> None:
        super().__exit__(kind, error, trace_back)
        if self._attached is not None:
            otel_context.detach(self._attached)
            self._attached = None

    @contextmanager
    def active(self) -> Iterator[None]:
        token = otel_context.attach(trace.set_span_in_context(self._span))
        try:
            with super().active():
                yield
        finally:
            otel_context.detach(token)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, name: str, value: Value | None) -> None:
        if value is not None:
            self._span.set_attribute(name, value)

    def link(self, to: TraceContext, attributes: Attributes) -> None:
        self._span.add_link(_span_context(to), _told(attributes))

    def fail(self, error_type: str, message: str | None = None) -> None:
        self._span.set_attribute(ERROR_TYPE, error_type)
        self._span.set_status(Status(StatusCode.ERROR, message[:_LONGEST_MESSAGE] if message else None))

    def end(self, *, at: float | None = None) -> None:
        self._span.end(None if at is None else int(at * 1e9))


def _span_context(context: TraceContext) -> SpanContext:
    if isinstance(context.recorded, SpanContext):
        return context.recorded
    return SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT),
        trace_state=TraceState.from_header([context.tracestate]) if context.tracestate else None,
    )


def _told(attributes: Attributes) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}

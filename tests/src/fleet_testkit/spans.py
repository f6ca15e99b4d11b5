"""Spans of the test's own process, recorded as they would be exported."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fleet_kit.telemetry.tracing import record_with


class RecordedSpans:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def all(self) -> list[ReadableSpan]:
        """Ended spans, in the order in which they ended."""
        return list(self._exporter.get_finished_spans())

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.all]

    def named(self, name: str) -> ReadableSpan:
        """The only span of that name."""
        [found] = [span for span in self.all if span.name == name]
        return found


@contextmanager
def recorded_spans() -> Iterator[RecordedSpans]:
    recorded = RecordedSpans()
    record_with(recorded.provider.get_tracer("test"))
    try:
        yield recorded
    finally:
        record_with(None)


def parent_id_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def ids_of(span: ReadableSpan) -> tuple[str, str]:
    """The ids of the trace and of the span."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"

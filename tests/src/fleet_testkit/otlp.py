"""An OTLP collector for tests: takes spans over HTTP as a real one does, or fails as a broken one does."""

import gzip
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from .waiting import wait_until


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    trace_id: str
    span_id: str
    # Empty for the root span.
    parent_id: str
    name: str
    kind: str
    attributes: dict[str, Any]
    # Ids of the linked spans, with the attributes of the link.
    links: list[tuple[str, dict[str, Any]]]
    is_error: bool
    error: str
    begun_at: float
    ended_at: float
    # The resource attributes of the process.
    resource: dict[str, Any] = field(repr=False)

    @property
    def service(self) -> str:
        return str(self.resource["service.name"])


class Receiver:
    """`with Receiver() as receiver: start something with receiver.env; receiver.wait_for("a span", …)`"""

    def __init__(self, *, status: int = 200, hangs: bool = False) -> None:
        self.requests = 0
        self._spans: list[ReceivedSpan] = []
        self._lock = threading.Lock()
        self._released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests += 1
                if hangs:
                    receiver._released.wait()
                    return
                if status == 200:
                    receiver._take(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> "Receiver":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def env(self) -> dict[str, str]:
        """The environment of processes that export to this receiver, with a short delay instead of seconds."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_address[1]}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    @property
    def spans(self) -> list[ReceivedSpan]:
        with self._lock:
            return list(self._spans)

    def trace(self, trace_id: str) -> "Trace":
        return Trace([span for span in self.spans if span.trace_id == trace_id])

    def wait_for(
        self, what: str, trace_id: str, condition: "Callable[[Trace], Any]", *, within: float = 30.0
    ) -> "Trace":
        """Wait until the condition holds for a trace; return the trace."""

        def look() -> Trace | None:
            trace = self.trace(trace_id)
            return trace if condition(trace) else None

        try:
            found = wait_until(look, within=within, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.trace(trace_id)}") from error
        assert found is not None
        return found

    def _take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        taken = [
            _received(span, _values(of_process.resource.attributes))
            for of_process in request.resource_spans
            for of_scope in of_process.scope_spans
            for span in of_scope.spans
        ]
        with self._lock:
            self._spans += taken


class Trace:
    """The spans of one trace, and the tree that they form."""

    def __init__(self, spans: list[ReceivedSpan]) -> None:
        self.spans = sorted(spans, key=lambda span: span.begun_at)

    def named(self, name: str, **attributes: Any) -> list[ReceivedSpan]:
        """`pyoco_run_id=…` is the attribute pyoco.run.id."""
        wanted = {key.replace("_", "."): value for key, value in attributes.items()}
        return [
            span
            for span in self.spans
            if span.name == name and all(span.attributes.get(key) == value for key, value in wanted.items())
        ]

    def only(self, name: str, **attributes: Any) -> ReceivedSpan:
        found = self.named(name, **attributes)
        assert len(found) == 1, f"{len(found)} spans {name} {attributes}\n{self}"
        return found[0]

    def count(self, name: str, **attributes: Any) -> int:
        return len(self.named(name, **attributes))

    def parent(self, span: ReceivedSpan) -> ReceivedSpan | None:
        return next((one for one in self.spans if one.span_id == span.parent_id), None)

    def way_to(self, span: ReceivedSpan) -> list[str]:
        """The names of the spans from the root down to a span."""
        names = [span.name]
        while (above := self.parent(span)) is not None:
            span = above
            names.insert(0, span.name)
        return names

    def orphans(self) -> list[ReceivedSpan]:
        """Spans whose parent is not there."""
        return [span for span in self.spans if span.parent_id and self.parent(span) is None]

    def __str__(self) -> str:
        """The spans as a tree, for messages of failed tests."""
        lines: list[str] = []

        def show(span: ReceivedSpan, depth: int) -> None:
            lines.append(f"{'  ' * depth}{span.name} [{span.service}] {span.attributes}")
            for child in self.spans:
                if child.parent_id == span.span_id:
                    show(child, depth + 1)

        for span in self.spans:
            if self.parent(span) is None:
                show(span, 0)
        return "\n".join(lines)


def _received(span: trace_pb2.Span, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        attributes=_values(span.attributes),
        links=[(link.span_id.hex(), _values(link.attributes)) for link in span.links],
        is_error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        error=span.status.message,
        begun_at=span.start_time_unix_nano / 1e9,
        ended_at=span.end_time_unix_nano / 1e9,
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None

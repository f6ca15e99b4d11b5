"""A server span for each request, inside the caller's trace if the request carries a trace context."""

from starlette.datastructures import Headers
from starlette.types import Scope

from fleet_contracts import spans
from fleet_contracts.trace_context import TRACEPARENT, TRACESTATE, TraceContext

from ..logs.masking import without_secrets
from ..telemetry.setup import believes_clients
from ..telemetry.tracing import UNTRACED, Kind, Span, is_recording, span
from .request_metrics import INTERNAL_PATHS, METHODS, UNMATCHED, route_of

_OTHER_METHOD = "HTTP"


class RequestSpans:
    """Starts server spans. Probes, scrapes and the paths of `untraced` have none."""

    def __init__(self, untraced: frozenset[str] = frozenset()) -> None:
        self._untraced = INTERNAL_PATHS | untraced
        self._believes_clients = believes_clients()

    def begin(self, scope: Scope, request_id: str) -> Span:
        if scope["path"] in self._untraced:
            return UNTRACED
        caller = _context_in(scope) if self._believes_clients else None
        if not is_recording():
            return span("", parent=caller)
        method = scope["method"]
        attributes = {
            spans.HTTP_METHOD: method,
            spans.URL_PATH: without_secrets(scope["path"]),
            spans.REQUEST_ID: request_id,
        }
        return span(_named(method), attributes, kind=Kind.SERVER, parent=caller, begins_trace=True)

    def answered(self, traced: Span, scope: Scope, status: int) -> None:
        """Record route and status; called before the span ends."""
        if not is_recording():
            return
        if (route := route_of(scope)) != UNMATCHED:
            traced.rename(f"{_named(scope['method'])} {route}")
            traced.set(spans.HTTP_ROUTE, route)
        # 0 means that the client disconnected before an answer.
        traced.set(spans.HTTP_STATUS_CODE, status or None)
        if status >= 500:
            traced.fail(str(status))


def _named(method: str) -> str:
    """Bounds the span names: clients may send any method."""
    return method if method in METHODS else _OTHER_METHOD


def _context_in(scope: Scope) -> TraceContext | None:
    headers = Headers(scope=scope)
    # A repeated tracestate is one list. A repeated traceparent is ambiguous; joined, it is invalid and ignored.
    parent, state = (",".join(headers.getlist(name)) or None for name in (TRACEPARENT, TRACESTATE))
    return TraceContext.parse(parent, state)

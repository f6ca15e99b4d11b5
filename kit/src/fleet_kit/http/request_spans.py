"""A span for each request of a service, inside its caller's trace if it says which."""

from starlette.types import Scope

from fleet_contracts import spans
from fleet_contracts.trace_context import TRACEPARENT, TRACESTATE, TraceContext

from ..logs.masking import without_secrets
from ..telemetry.setup import believes_clients
from ..telemetry.tracing import UNTRACED, Kind, Span, is_recording, span
from .request_metrics import METHODS, UNCOUNTED_PATHS, UNMATCHED, route_of

_HEADERS = (TRACEPARENT.encode(), TRACESTATE.encode())
_OTHER_METHOD = "HTTP"


class RequestSpans:
    """Probes, scrapes and the paths of `untraced` have none."""

    def __init__(self, untraced: frozenset[str] = frozenset()) -> None:
        self._untraced = UNCOUNTED_PATHS | untraced
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
        """Said before the span is left."""
        if not is_recording():
            return
        if (route := route_of(scope)) != UNMATCHED:
            traced.rename(f"{_named(scope['method'])} {route}")
            traced.set(spans.HTTP_ROUTE, route)
        # Nobody was answered if the caller went away before.
        traced.set(spans.HTTP_STATUS_CODE, status or None)
        if status >= 500:
            traced.fail(str(status))


def _named(method: str) -> str:
    """Anybody may invent methods."""
    return method if method in METHODS else _OTHER_METHOD


def _context_in(scope: Scope) -> TraceContext | None:
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _HEADERS:
            # A list of vendors may be split; of two contexts neither can be meant, and together they are none.
            found[name] = found[name] + b"," + value if name in found else value
    if not found:
        return None
    parent, state = (str(found[name], "latin-1") if name in found else None for name in _HEADERS)
    return TraceContext.parse(parent, state)

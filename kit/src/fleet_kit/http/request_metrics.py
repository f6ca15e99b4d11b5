"""Counts and times requests by route template, never by the path that was requested."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import Message, Scope

from ..telemetry.metrics import OTHER

# Probes and scrapes: not counted as traffic, not traced, and answered to everybody, without the gateway's secret.
INTERNAL_PATHS = frozenset({"/health", "/ready", "/metrics"})

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNMATCHED = "unmatched"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class RequestMetrics:
    def __init__(self, registry: CollectorRegistry, *, component: str) -> None:
        self._component = component
        self._requests = Counter(
            "pyoco_http_requests",
            "Requests answered, by route template and status code.",
            ["component", "method", "route", "code"],
            registry=registry,
        )
        self._seconds = Histogram(
            "pyoco_http_request_duration_seconds",
            "How long answers took, streams excepted.",
            ["component", "method", "route"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._streams = Gauge(
            "pyoco_http_open_streams",
            "Server-sent event streams that are open now.",
            ["component", "route"],
            registry=registry,
        )

    def answered(self, scope: Scope, status: int, seconds: float, *, streamed: bool) -> None:
        # Clients may send any method: the values of a label are bounded.
        method = scope["method"] if scope["method"] in METHODS else OTHER
        labels = (self._component, method, route_of(scope))
        self._requests.labels(*labels, str(status)).inc()
        if streamed:
            self._streams.labels(self._component, route_of(scope)).dec()
        else:
            self._seconds.labels(*labels).observe(seconds)

    def stream_opened(self, scope: Scope) -> None:
        self._streams.labels(self._component, route_of(scope)).inc()


def route_of(scope: Scope) -> str:
    """The route template, such as `/runs/{run_id}`; `unmatched` if there is no such route."""
    return str(scope.get("fleet_route") or getattr(scope.get("route"), "path", UNMATCHED))


def is_stream(start: Message) -> bool:
    """Whether the response is an event stream, which stays open as long as the client reads."""
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in start["headers"])

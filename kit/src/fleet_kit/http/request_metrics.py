"""Counts and times requests by route template, never by the path that was requested."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import Message, Scope

# Probes and scrapes are not counted as traffic.
UNCOUNTED_PATHS = frozenset({"/health", "/ready", "/metrics"})

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER = "other"
UNMATCHED = "unmatched"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class RequestMetrics:
    """Request counters and timers; labelled children are made on first use and then cached in dicts."""

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
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[tuple[str, str], Histogram] = {}

    def answered(self, scope: Scope, status: int, seconds: float, *, streamed: bool) -> None:
        method, route = scope["method"], route_of(scope)
        counter = self._counters.get((method, route, status))
        if counter is None:
            labels = (self._component, _known(method), route, str(status))
            counter = self._counters[_known(method), route, status] = self._requests.labels(*labels)
        counter.inc()
        if streamed:
            return
        timer = self._timers.get((method, route))
        if timer is None:
            timer = self._seconds.labels(self._component, _known(method), route)
            self._timers[_known(method), route] = timer
        timer.observe(seconds)

    def stream_opened(self, scope: Scope) -> None:
        self._streams.labels(self._component, route_of(scope)).inc()

    def stream_closed(self, scope: Scope) -> None:
        self._streams.labels(self._component, route_of(scope)).dec()


def route_of(scope: Scope) -> str:
    """The route template, such as `/runs/{run_id}`; `unmatched` if there is no such route."""
    return str(scope.get("fleet_route") or getattr(scope.get("route"), "path", UNMATCHED))


def is_stream(start: Message) -> bool:
    """Whether the response is an event stream, which stays open as long as the client reads."""
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in start["headers"])


def _known(method: str) -> str:
    """Bounds the label values: clients may send any method."""
    return method if method in METHODS else _OTHER

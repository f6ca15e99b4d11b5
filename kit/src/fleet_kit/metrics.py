"""The Prometheus registry of one process."""

from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from .build import release

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def new_registry(component: str) -> CollectorRegistry:
    """A registry of our own (not the process-global one), so that tests may build many."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    build = Gauge("pyoco_build_info", "Which build this is.", ["component", "version"], registry=registry)
    build.labels(component, release()).set(1)
    return registry


def render(registry: Collector) -> bytes:
    return generate_latest(registry)

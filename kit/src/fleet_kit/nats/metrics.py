"""Prometheus metrics of the NATS connection, read from the link at each scrape."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .link import NatsLink


class NatsMetrics(Collector):
    def __init__(self, link: NatsLink, registry: CollectorRegistry, *, component: str) -> None:
        self._link = link
        self._component = component
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily(
            "pyoco_nats_up", "1 while NATS answers and all that is needed there was found.", labels=["component"]
        )
        up.add_metric([self._component], float(self._link.down_because is None))
        yield up
        reconnects = CounterMetricFamily(
            "pyoco_nats_reconnects", "How often the connection was lost and made anew.", labels=["component"]
        )
        reconnects.add_metric([self._component], self._link.reconnects)
        yield reconnects

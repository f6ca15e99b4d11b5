"""Prometheus metrics of the workers, read from the in-memory registry at each scrape."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet_contracts.status import ACTIVE_WORKER_STATES, WorkerState
from fleet_kit.errors import NatsUnavailable

from .registry import Registry
from .watching import Watching


class WorkersMetrics(Collector):
    def __init__(self, prometheus: CollectorRegistry, registry: Registry, watching: Watching) -> None:
        self._registry = registry
        self._watching = watching
        prometheus.register(self)

    def collect(self) -> Iterable[Metric]:
        workers = GaugeMetricFamily("pyoco_workers", "Workers in the registry, by state.", labels=["state"])
        draining = GaugeMetricFamily("pyoco_workers_draining", "Live workers that an operator has drained.")
        slots = GaugeMetricFamily("pyoco_workers_slots", "Slots of all live workers.")
        # While NATS is unavailable the registry in memory may be stale, and these metrics have no samples.
        with suppress(NatsUnavailable):
            judged = [(record, self._registry.state_of(record)) for record in self._registry.records()]
            states = Counter(state for _, state in judged)
            for state in WorkerState:
                workers.add_metric([state.value], states[state])
            alive = [record for record, state in judged if state in ACTIVE_WORKER_STATES]
            draining.add_metric([], sum(record.draining for record in alive))
            slots.add_metric([], sum(record.slots for record in alive))
        yield from (workers, draining, slots)
        yield GaugeMetricFamily(
            "pyoco_worker_watchers", "Callers that follow the workers now.", value=self._watching.watcher_count
        )

"""Prometheus metrics of a worker: its jobs, claims, runs, runners and wheels."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet_contracts.worker_record import WheelSyncResult
from fleet_kit.telemetry.metrics import BoundedNames, new_registry

from ...pool.pool import RunnerPool
from ...presence.record import Registry
from ...wheels.sync import SyncedWheels
from ..disposition import Ended, Outcome, name_of

_CLAIM_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_RUN_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_SIZE_BUCKETS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)


class WorkerMetrics:
    def __init__(self, *, revision: str = "unknown", max_flows: int = 100) -> None:
        registry = self.registry = new_registry("worker", revision=revision)
        self._flows = BoundedNames(max_flows)
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        self._jobs = counter("pyoco_worker_jobs", "Jobs that were taken, by what became of them.", ["outcome"])
        self._run_seconds = histogram(
            "pyoco_worker_run_duration_seconds",
            "How long runners were busy with one attempt, by flow.",
            ["flow"],
            buckets=_RUN_BUCKETS,
        )
        self.claim_seconds = histogram(
            "pyoco_worker_claim_duration_seconds", "How long it took to claim a run.", buckets=_CLAIM_BUCKETS
        )
        self.claim_conflicts = counter(
            "pyoco_worker_claim_conflicts", "How often somebody else had written a snapshot before us."
        )
        self.queue_wait_seconds = histogram(
            "pyoco_worker_queue_wait_seconds",
            "How long jobs had been in the queue when they were claimed at their first delivery.",
            buckets=_RUN_BUCKETS,
        )
        self.snapshot_bytes = histogram(
            "pyoco_worker_snapshot_bytes", "Sizes of the snapshots that were written.", buckets=_SIZE_BUCKETS
        )
        self.runner_deaths = counter("pyoco_worker_runner_deaths", "Runners that died in mid-run by themselves.")

    def count(self, outcome: Outcome) -> None:
        name = outcome.status.value.lower() if isinstance(outcome, Ended) else name_of(outcome)
        self._jobs.labels(name).inc()

    def note_run(self, flow: str, seconds: float, *, found: bool) -> None:
        """`found`: the flow exists. Unknown names must not use up the limited number of label values."""
        self._run_seconds.labels(self._flows.label(flow, known=found)).observe(seconds)


@dataclass(frozen=True, slots=True)
class AgentState(Collector):
    """Metrics that are read from the parts of the agent at each scrape."""

    slots: int
    pool: RunnerPool
    record: Registry
    wheels: SyncedWheels | None

    def collect(self) -> Iterable[Metric]:
        pool, is_draining = self.pool, self.record.is_draining
        yield GaugeMetricFamily("pyoco_worker_slots", "How many runs the worker executes at once.", self.slots)
        yield GaugeMetricFamily("pyoco_worker_slots_busy", "Runners that execute a run now.", pool.busy)
        yield GaugeMetricFamily("pyoco_worker_runners", "Runners that live and are ready, busy or not.", pool.size)
        yield GaugeMetricFamily("pyoco_worker_draining", "1 while no new jobs are taken.", float(is_draining))
        yield CounterMetricFamily("pyoco_worker_runner_starts", "Runner processes that became ready.", pool.starts)
        yield CounterMetricFamily(
            "pyoco_worker_runner_start_failures", "Runner processes that did not.", pool.start_failures
        )
        yield CounterMetricFamily(
            "pyoco_worker_heartbeats", "How often the worker wrote its registry record.", self.record.writes
        )
        syncs = CounterMetricFamily(
            "pyoco_worker_wheel_syncs", "Looks at the wheel registry, by result.", labels=["result"]
        )
        if self.wheels is not None:
            syncs.add_metric([WheelSyncResult.OK.value], self.wheels.successes)
            syncs.add_metric([WheelSyncResult.ERROR.value], self.wheels.failures)
        yield syncs
        yield GaugeMetricFamily("pyoco_worker_wheels", "Wheels in force.", len(pool.wheels.wheels))

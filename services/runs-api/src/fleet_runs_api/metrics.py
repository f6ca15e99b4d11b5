"""The runs service's metrics: the spec's series, and what was repaired."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from fleet_contracts.status import RunStatus
from fleet_kit.metrics import new_registry


class RunsMetrics:
    def __init__(self) -> None:
        self.registry: CollectorRegistry = new_registry("runs-api")
        # The spec names these *_total although they are counts of what is there now.
        self.runs = Gauge("pyoco_runs_total", "Runs by status.", ["status"], registry=self.registry)
        self.workers_alive = Gauge("pyoco_workers_alive_total", "Workers that are alive.", registry=self.registry)
        self.dead_letters = Gauge("pyoco_dlq_messages_total", "Dead letters in the stream.", registry=self.registry)
        self.open_letters = Gauge(
            "pyoco_dlq_open_letters", "Dead letters that nobody has requeued or deleted.", registry=self.registry
        )
        self.submitted = Counter("pyoco_runs_submitted", "Runs accepted by this process.", registry=self.registry)
        self.ingested = Counter(
            "pyoco_runs_ingested_changes", "Snapshot changes folded into the ledger.", registry=self.registry
        )
        self.repairs = Counter(
            "pyoco_runs_repairs", "What the sweeper repaired, by reason.", ["reason"], registry=self.registry
        )

    def show_totals(self, totals: dict[RunStatus, int]) -> None:
        for status in RunStatus:
            self.runs.labels(status.value).set(totals.get(status, 0))

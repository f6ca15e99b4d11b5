"""The runs service's metrics: the spec's series, and what was repaired."""

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.registry import Collector

from fleet_contracts.status import RunStatus
from fleet_kit.metrics import new_registry

# Names of samples, as the client library chooses by them.
_OF_FLEET = (
    "pyoco_build_info",
    "pyoco_runs_total",
    "pyoco_workers_alive_total",
    "pyoco_dlq_messages_total",
    "pyoco_dlq_open_letters",
    "pyoco_runs_submitted_total",
    "pyoco_runs_ingested_changes_total",
    "pyoco_runs_repairs_total",
)


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

    def of_fleet(self) -> Collector:
        """What the gateway shows: series that tell nothing of single tenants, such as the names of their flows."""
        return self.registry.restricted_registry(_OF_FLEET)

    def show_totals(self, totals: dict[RunStatus, int]) -> None:
        for status in RunStatus:
            self.runs.labels(status.value).set(totals.get(status, 0))

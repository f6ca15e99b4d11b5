"""The runs service's metrics: the spec's series, how long every step takes, and what was repaired."""

from collections.abc import Iterable
from math import nan

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.telemetry.metrics import OTHER, BoundedNames, new_registry

# Sample names, since the client library selects by them. Only series that all replicas report alike: any replica
# may answer a request through the gateway.
_OF_FLEET = (
    "pyoco_build_info",
    "pyoco_runs_total",
    "pyoco_workers_alive_total",
    "pyoco_dlq_messages_total",
    "pyoco_dlq_open_letters",
)
# Reasons of repairs. Their series exist from the start, so that a first repair shows as an increase.
REPAIRS = (
    "worker_lost",
    "cancel_unfinished",
    "snapshot_lost",
    "snapshot_unreadable",
    "job_lost",
    "delivery_unclaimed",
    "deadline_exceeded",
    "deliveries_exhausted",
    "flow_elsewhere",
)

_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LAG_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_RUN_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_SIZE_BUCKETS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_REASONS = frozenset(DeadLetterReason)


class RunsMetrics:
    def __init__(self, *, revision: str = "unknown", max_flows: int = 100) -> None:
        self.registry: CollectorRegistry = new_registry("runs-api", revision=revision)
        self._flows = BoundedNames(max_flows)
        self._make_fleet_gauges()
        self._make_steps()
        self._make_runs()

    def _make_fleet_gauges(self) -> None:
        """Gauges that all replicas report alike, because they query the same ledger and streams."""
        gauge = self._gauge
        # The spec names these *_total although they are counts of what is there now.
        self.runs = gauge("pyoco_runs_total", "Runs by status.", "status")
        self.workers_alive = gauge("pyoco_workers_alive_total", "Workers that are alive.")
        self.dead_letters = gauge("pyoco_dlq_messages_total", "Dead letters in the stream.")
        self.open_letters = gauge(
            "pyoco_dlq_open_letters", "Dead letters that nobody has requeued or deleted; counted up to 10,000."
        )
        self.ledger_up = gauge("pyoco_ledger_up", "1 if the ledger answered when it was last asked.")
        self.oldest_heartbeat = gauge(
            "pyoco_runs_oldest_heartbeat_seconds",
            "How long ago the ledger heard of the held run that it heard of longest ago; 0 without any.",
        )
        self.outbox_due = gauge(
            "pyoco_outbox_due_rows", "Dispatches that are due and not sent; counted up to 10,000."
        )
        self.outbox_oldest = gauge(
            "pyoco_outbox_oldest_due_seconds", "How long the oldest of them has been due; 0 without any."
        )
        self.ingest_pending = gauge(
            "pyoco_ingest_pending_changes", "Changes of snapshots that the ledger does not know yet."
        )
        self.ingest_oldest = gauge(
            "pyoco_ingest_oldest_pending_seconds", "How long ago the oldest of them was written; 0 without any."
        )
        self.queue_jobs = gauge(
            "pyoco_queue_jobs", "Jobs in the queue of a tag: waiting, or taken by a worker.", "tag", "state"
        )
        self.queue_oldest = gauge(
            "pyoco_queue_oldest_waiting_seconds", "How long the oldest waiting job of a tag has waited.", "tag"
        )
        self.queue_workers = gauge(
            "pyoco_queue_workers", "Live workers that take jobs of a tag; drained ones do not.", "tag"
        )
        self.queue_free_slots = gauge("pyoco_queue_free_slots", "Slots of those workers that are free.", "tag")

    def _make_steps(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.accept_seconds = histogram(
            "pyoco_accept_duration_seconds", "How long it took until a submit was on disk.", _STEP_BUCKETS
        )
        self.relay_seconds = histogram(
            "pyoco_relay_duration_seconds",
            "How long it took to send a dispatch to JetStream, its snapshot and its job.",
            _STEP_BUCKETS,
        )
        self.relay_failures = counter(
            "pyoco_relay_failures", "Dispatches that could not be sent when they were due, and are tried again."
        )
        self.commit_seconds = histogram(
            "pyoco_ledger_commit_duration_seconds", "How long transactions of the ledger took.", _STEP_BUCKETS
        )
        self.commit_writes = histogram(
            "pyoco_ledger_commit_writes", "How many writes shared one transaction.", _BATCH_BUCKETS
        )
        self.declined = counter(
            "pyoco_declined_jobs", "Jobs that workers declined for want of their flow, by decision.", "decision"
        )
        self.ingested = counter("pyoco_runs_ingested_changes", "Snapshot changes folded into the ledger.")
        self.ingest_lag = histogram(
            "pyoco_ingest_lag_seconds",
            "How old the oldest change of a batch was when it was folded in.",
            _LAG_BUCKETS,
        )
        self.snapshot_bytes = histogram(
            "pyoco_ingest_snapshot_bytes", "Sizes of the snapshots that were folded in.", _SIZE_BUCKETS
        )
        self.repairs = counter("pyoco_runs_repairs", "What the sweeper repaired, by reason.", "reason")
        for reason in REPAIRS:
            self.repairs.labels(reason)
        self.swept_at = self._gauge(
            "pyoco_sweep_last_success_timestamp_seconds", "When the sweeper last finished a round, in unix seconds."
        )
        self.swept_at.set(0)
        self.letters = counter("pyoco_dlq_letters", "Dead letters taken into the ledger, by reason.", "reason")
        for letter_reason in DeadLetterReason:
            self.letters.labels(letter_reason.value)
        self.watchers = self._gauge("pyoco_run_watchers", "Callers that follow the states of a run now.")
        self.disk_free = self._gauge(
            "pyoco_disk_free_bytes",
            "Free space on the disk of the ledger's file; unknown for a database server.",
        )
        self.followers = self._gauge("pyoco_log_followers", "Callers that follow the output of a run now.")

    def _make_runs(self) -> None:
        self.submitted = self._counter("pyoco_runs_submitted", "Runs accepted by this process.")
        self.withdrawn = self._counter(
            "pyoco_runs_withdrawn", "Runs that could not be sent and were taken back: their submits got 503."
        )
        self.ended = self._counter("pyoco_runs_ended", "Runs that ended, by flow and status.", "flow", "status")
        self.run_seconds = self._histogram(
            "pyoco_run_duration_seconds", "How long the attempts took that ended runs.", _RUN_BUCKETS, "flow"
        )
        self.wait_seconds = self._histogram(
            "pyoco_run_wait_seconds",
            "How long runs were due before their only attempt began.",
            _RUN_BUCKETS,
            "flow",
        )
        self.attempts = self._histogram(
            "pyoco_run_attempts", "How many attempts ended runs took.", (0, 1, 2, 3, 5, 10, 20)
        )

    def of_fleet(self) -> Collector:
        """The series that the gateway shows. They reveal nothing of single tenants, such as names of flows."""
        return self.registry.restricted_registry(_OF_FLEET)

    def show_totals(self, totals: dict[RunStatus, int]) -> None:
        for status in RunStatus:
            self.runs.labels(status.value).set(totals.get(status, 0))

    def count_letter(self, reason: str) -> None:
        self.letters.labels(reason if reason in _REASONS else OTHER).inc()

    def note_changes(self, changed: Iterable[RunSnapshot]) -> None:
        """Count snapshots that changed the ledger. The end of a run changes it only once."""
        for snapshot in changed:
            self.ingested.inc()
            if snapshot.is_terminal:
                self._note_end(snapshot)

    def _note_end(self, snapshot: RunSnapshot) -> None:
        flow = self._flows.label(snapshot.flow_name, known=_has_run(snapshot))
        self.ended.labels(flow, snapshot.status.value).inc()
        self.attempts.observe(snapshot.attempt)
        begun = snapshot.start_time
        if begun is None:
            return
        # A run that ended while it waited for another attempt still has the start time of the one before.
        if snapshot.worker_id is not None:
            self.run_seconds.labels(flow).observe(max((snapshot.end_time or snapshot.updated_at) - begun, 0.0))
        if snapshot.attempt == 1 and not snapshot.reopened and snapshot.submitted_at is not None:
            due = snapshot.due_at or snapshot.submitted_at
            self.wait_seconds.labels(flow).observe(max(begun - due, 0.0))

    def forget_ledger(self) -> None:
        """Clear the values that come from the ledger, or set them to NaN, while it is unavailable."""
        self.runs.clear()
        for gauge in (self.open_letters, self.oldest_heartbeat, self.outbox_due, self.outbox_oldest):
            gauge.set(nan)

    def forget_tags(self) -> None:
        for by_tag in (self.queue_jobs, self.queue_oldest, self.queue_workers, self.queue_free_slots):
            by_tag.clear()

    def forget_streams(self) -> None:
        self.forget_tags()
        for gauge in (self.workers_alive, self.dead_letters, self.ingest_pending, self.ingest_oldest):
            gauge.set(nan)

    def _gauge(self, name: str, description: str, *labels: str) -> Gauge:
        return Gauge(name, description, labels, registry=self.registry)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(name, description, labels, registry=self.registry)

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, description, labels, buckets=buckets, registry=self.registry)


def _has_run(snapshot: RunSnapshot) -> bool:
    """Whether a worker has found the run's flow. The name of a flow that none has found may be invented."""
    is_flows_failure = snapshot.reason == DeadLetterReason.EXECUTION_ERROR
    return bool(snapshot.tasks) or snapshot.status is RunStatus.COMPLETED or is_flows_failure

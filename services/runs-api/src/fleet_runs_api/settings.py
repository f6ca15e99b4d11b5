"""The settings of the runs service."""

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator
from sqlalchemy import make_url

from fleet_contracts.names import ConsumerDefaults, Tag, WireNames
from fleet_contracts.retry import RetryPolicy
from fleet_kit.files.disk import DiskLimits
from fleet_kit.files.secrets import read_secret
from fleet_kit.nats.stream_limits import DlqLimits, EventsLimits
from fleet_kit.settings import FleetSettings, HttpSettings


class LedgerSettings(FleetSettings):
    runs_database_url: str = Field("sqlite:///.fleet/runs.db", pattern=r"^(sqlite|postgresql(\+psycopg)?)://")
    # File with the database password, for a URL that does not contain it.
    runs_database_password_file: Path | None = None

    @model_validator(mode="after")
    def _complete_address(self) -> Self:
        self.runs_database_url = self.runs_database_url.replace("postgresql://", "postgresql+psycopg://", 1)
        if self.runs_database_password_file is not None:
            password = read_secret(self.runs_database_password_file, setting="PYOCO_RUNS_DATABASE_PASSWORD_FILE")
            url = make_url(self.runs_database_url).set(password=password)
            self.runs_database_url = url.render_as_string(hide_password=False)
        return self


class RunsSettings(HttpSettings, LedgerSettings, WireNames, ConsumerDefaults, DlqLimits, EventsLimits, DiskLimits):
    max_run_snapshot_bytes: int = Field(262144, ge=4096)
    workflow_yaml_max_bytes: int = Field(262144, ge=1)
    worker_disconnect_timeout_sec: float = Field(20.0, gt=0)

    # Command that starts a worker of a tag in this fleet; shown with runs that wait for one.
    worker_start_command: str = "pyoco-worker --tags {tag}"

    # Limits on the queues made for the tags of one worker, and of all workers, since the start of the process.
    worker_tags_max: int = Field(100, ge=1)
    queues_max: int = Field(1000, ge=1)

    # How often the sweeper runs, and after how long without a heartbeat the holder of a run counts as lost.
    sweep_interval_sec: float = Field(1.0, gt=0)
    run_lost_after_sec: float = Field(4.0, gt=0)
    # How often an unfinished run is compared with JetStream although nothing seems wrong.
    run_check_interval_sec: float = Field(30.0, gt=0)

    # How long a run waits for a worker that offers its flow, while no live worker of its tag does.
    flow_wait_sec: float = Field(3.0, ge=0)

    # Default retry policies by tag, as JSON; a submit may give its own.
    retry_defaults: dict[Tag, RetryPolicy] = {}

    # How long an ended run stays in KV, and in the ledger (0: for ever).
    runs_kv_retention_sec: float = Field(3600.0, ge=0)
    runs_retention_sec: float = Field(2592000.0, ge=0)
    # How long a submit that is repeated with its idempotency key gets the answer of the first one.
    idempotency_key_ttl_sec: float = Field(86400.0, gt=0)

    # How many flows, the first that run, have histograms of their own; all others share one.
    metrics_max_flows: int = Field(100, ge=0, le=1000)

    # Signs the cursors of lists. If it is not set, the replicas generate one and keep it in the ledger.
    cursor_secret: SecretStr | None = None

    @property
    def relay_retry_sec(self) -> float:
        """Delay before the relay takes a run. By then the submitting process has mostly sent or withdrawn it."""
        return self.nats_request_timeout_sec + 2

"""What every execution of one agent uses."""

from dataclasses import dataclass, field
from pathlib import Path

from fleet_kit.nats import NatsLink

from .claims import Claims
from .metrics import WorkerMetrics
from .pool import RunnerPool
from .registry import Registry
from .settings import WorkerSettings
from .synced_wheels import SyncedWheels


@dataclass(frozen=True, slots=True)
class Services:
    link: NatsLink
    settings: WorkerSettings
    claims: Claims
    pool: RunnerPool
    registry: Registry
    runs_dir: Path
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    # None: wheels are not synced.
    wheels: SyncedWheels | None = None

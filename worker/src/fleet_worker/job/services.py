"""The dependencies that all executions of an agent share."""

from dataclasses import dataclass, field
from pathlib import Path

from fleet_kit.nats.link import NatsLink

from ..pool.pool import RunnerPool
from ..presence.record import Registry
from ..settings import WorkerSettings
from ..wheels.sync import SyncedWheels
from .claims import Claims
from .declining import Declining
from .telemetry.metrics import WorkerMetrics


@dataclass(frozen=True, slots=True)
class Services:
    link: NatsLink
    settings: WorkerSettings
    claims: Claims
    declining: Declining
    pool: RunnerPool
    registry: Registry
    runs_dir: Path
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    # None: wheels are not synced.
    wheels: SyncedWheels | None = None

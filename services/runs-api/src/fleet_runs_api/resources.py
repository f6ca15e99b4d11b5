"""The connections and settings that the parts of the service share; `main.py` opens them."""

from dataclasses import dataclass

from fleet_kit.nats.link import NatsLink

from .ledger.database import Database
from .ledger.writer import GroupCommit
from .live.run_store import RunStore
from .metrics import RunsMetrics
from .settings import RunsSettings


@dataclass(frozen=True, slots=True)
class Resources:
    settings: RunsSettings
    metrics: RunsMetrics
    link: NatsLink
    runs: RunStore
    database: Database
    commits: GroupCommit

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


class Part:
    """A part of the service, with the resources that it shares with the others."""

    def __init__(self, shared: Resources) -> None:
        self._settings = shared.settings
        self._metrics = shared.metrics
        self._link = shared.link
        self._runs = shared.runs
        self._database = shared.database
        self._commits = shared.commits

"""The connections and settings that the parts of the service share; `main.py` opens them."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from fleet_kit.nats.link import NatsLink

from .ledger.sql.database import Database
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
        self._tasks: set[asyncio.Task[None]] = set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do some work in a task of its own, which nobody has to await."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Cancel the tasks that are still under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

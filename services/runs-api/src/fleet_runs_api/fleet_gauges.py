"""What is only known by asking the ledger and JetStream, shown to whoever scrapes."""

import asyncio
import logging
import time
from collections import Counter

from fleet_contracts.status import RunStatus
from fleet_kit.errors import FleetError
from fleet_kit.nats import NatsLink

from . import queries
from .database import Database
from .dead_letters.handling import DeadLetters
from .fleet_view import FleetView
from .metrics import RunsMetrics
from .settings import RunsSettings

logger = logging.getLogger(__name__)

# However many scrape: so often are ledger and JetStream asked.
_FRESH_SECONDS = 2.0


class FleetGauges:
    def __init__(
        self,
        *,
        settings: RunsSettings,
        link: NatsLink,
        database: Database,
        workers: FleetView,
        dead_letters: DeadLetters,
        metrics: RunsMetrics,
    ) -> None:
        self._settings = settings
        self._link = link
        self._database = database
        self._workers = workers
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._asking = asyncio.Lock()
        self._asked_at = float("-inf")

    async def show_fleet(self) -> None:
        """Bring the spec's series up to date; NatsUnavailable or LedgerUnavailable if one of them is away."""
        self._link.require()
        await self._show_ledger()
        await self._show_streams()

    async def refresh(self) -> None:
        """Bring everything up to date that can be; what cannot be known is not shown."""
        async with self._asking:
            if time.monotonic() - self._asked_at < _FRESH_SECONDS:
                return
            try:
                await self.show_fleet()
            except FleetError as error:
                logger.debug("not all metrics could be brought up to date: %s", error)
            self._asked_at = time.monotonic()

    async def _show_ledger(self) -> None:
        totals: Counter[RunStatus] = Counter()
        for row in await self._database.fetch(queries.totals_by_status()):
            totals[RunStatus(row.status)] += row.total
        self._metrics.show_totals(totals)
        self._metrics.open_letters.set(await self._dead_letters.total_open())

    async def _show_streams(self) -> None:
        self._metrics.workers_alive.set(self._workers.alive_count(now=time.time()))
        stream = await self._link.stream_info(self._settings.dlq_stream)
        self._metrics.dead_letters.set(stream.state.messages)

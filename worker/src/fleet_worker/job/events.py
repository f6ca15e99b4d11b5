"""Sends the events of a run to the events stream, in batches."""

import asyncio
import logging
from typing import Any

import orjson

from fleet_contracts.events import EventKind
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink

from ..settings import WorkerSettings

logger = logging.getLogger(__name__)

_MAX_BATCH_BYTES = 256 * 1024


class RunEventBatches:
    """Publishes batches without waiting for an acknowledgement; during a NATS outage it keeps the events.

    Batches are built as plain dicts in the shape of `RunEvents`: they are the most frequent messages of all, and the
    events come from our own runner.
    """

    def __init__(self, link: NatsLink, settings: WorkerSettings, run_id: str, attempt: int) -> None:
        self._link = link
        self._subject = settings.events_subject(settings.worker_id, run_id)
        self._head = {"run_id": run_id, "attempt": attempt, "worker_id": settings.worker_id}
        self._batch = 0
        self._events: list[dict[str, Any]] = []
        self._lock = asyncio.Lock()

    def add(self, events: list[dict[str, Any]]) -> None:
        self._events += events

    def add_run_status(self, status: RunStatus, *, at: float) -> None:
        self._events.append({"at": at, "kind": EventKind.RUN.value, "status": status.value})

    async def flush(self) -> None:
        async with self._lock:
            most = len(self._events)
            while self._events:
                payload, count = self._next_batch(most)
                try:
                    await self._link.send(self._subject, payload)
                except NatsUnavailable:
                    logger.debug("events of run %s wait for NATS", self._head["run_id"], exc_info=True)
                    return
                self._batch += 1
                most = 2 * count
                # Only what was sent leaves; more may have been added meanwhile.
                del self._events[:count]

    def _next_batch(self, most: int) -> tuple[bytes, int]:
        """Up to `most` of the oldest events, as far as they fit, but at least one; and how many they are."""
        count = most
        while True:
            payload = orjson.dumps({**self._head, "batch": self._batch, "events": self._events[:count]})
            if len(payload) <= _MAX_BATCH_BYTES or count == 1:
                return payload, min(count, len(self._events))
            count //= 2

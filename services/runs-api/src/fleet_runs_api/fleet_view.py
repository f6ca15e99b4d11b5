"""What the runs service knows of the workers: a mirror of their registry."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.kv import Mirror
from fleet_kit.nats import NatsLink

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Capacity:
    # Those that take jobs, and those that an operator has drained.
    workers: int
    draining: int
    free_slots: int
    # What all of them have in their hands, of this tag or of another that they serve.
    held: int


class FleetView:
    def __init__(
        self,
        link: NatsLink,
        *,
        bucket: str,
        disconnect_timeout_sec: float,
        on_tags: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        """`on_tags` hears at every change of a working worker's record which tags it serves."""
        self._disconnect_timeout_sec = disconnect_timeout_sec
        self._on_tags = on_tags
        self._records: dict[str, WorkerRecord] = {}
        self.mirror = Mirror(link, bucket, on_change=self._on_change)

    def worker(self, worker_id: str) -> WorkerRecord | None:
        return self._records.get(worker_id)

    def is_alive(self, record: WorkerRecord, *, now: float) -> bool:
        return record.is_alive(now=now, disconnect_timeout_sec=self._disconnect_timeout_sec)

    def alive_count(self, *, now: float) -> int:
        return sum(self.is_alive(record, now=now) for record in self._records.values())

    def tags(self, *, now: float) -> set[str]:
        """What the live workers serve."""
        return {tag for record in self._records.values() if self.is_alive(record, now=now) for tag in record.tags}

    def capacity(self, tag: str, *, now: float) -> Capacity:
        """What the live workers of a tag could take; one that is drained takes nothing."""
        serving = [r for r in self._records.values() if tag in r.tags and self.is_alive(r, now=now)]
        taking = [r for r in serving if not r.draining]
        return Capacity(
            workers=len(taking),
            draining=len(serving) - len(taking),
            free_slots=sum(max(r.slots - len(r.current_run_ids), 0) for r in taking),
            held=sum(len(r.current_run_ids) for r in serving),
        )

    def _on_change(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._records.pop(key, None)
            return
        try:
            record = self._records[key] = WorkerRecord.decode(value)
        except MalformedMessage as error:
            logger.warning("worker record %s cannot be read: %s", key, error)
            return
        if record.state is not WorkerState.STOPPED_GRACEFUL:
            self._on_tags(record.tags)

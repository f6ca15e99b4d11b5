"""The runs service's view of the workers: a mirror of their registry in KV."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.stores.kv import Mirror

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Capacity:
    # Workers that take jobs, and workers that an operator has drained.
    workers: int
    draining: int
    free_slots: int
    # Runs that all of them hold, of this tag or of another that they serve.
    held: int


NOBODY = Capacity(workers=0, draining=0, free_slots=0, held=0)


class FleetView:
    def __init__(
        self,
        link: NatsLink,
        *,
        bucket: str,
        disconnect_timeout_sec: float,
        start_command: str,
        on_tags: Callable[[str, list[str]], None] = lambda worker_id, tags: None,
    ) -> None:
        """`on_tags` is called with a worker's id and tags at every change of its record, unless it has stopped."""
        self._disconnect_timeout_sec = disconnect_timeout_sec
        self._start_command = start_command
        self._on_tags = on_tags
        self._records: dict[str, WorkerRecord] = {}
        self.mirror = Mirror(link, bucket, on_change=self._on_change)

    def worker(self, worker_id: str) -> WorkerRecord | None:
        return self._records.get(worker_id)

    def start_command(self, tag: str) -> str:
        """The command that starts one more worker of the tag."""
        return self._start_command.replace("{tag}", tag)

    def is_alive(self, record: WorkerRecord, *, now: float) -> bool:
        return record.is_alive(now=now, disconnect_timeout_sec=self._disconnect_timeout_sec)

    def alive_count(self, *, now: float) -> int:
        return sum(self.is_alive(record, now=now) for record in self._records.values())

    def serving(self, tag: str, *, now: float) -> list[WorkerRecord]:
        """The live workers of a tag, drained ones included."""
        return [r for r in self._records.values() if tag in r.tags and self.is_alive(r, now=now)]

    def capacity(self, tag: str, *, now: float) -> Capacity:
        return _capacity_of(self.serving(tag, now=now))

    def capacities(self, *, now: float) -> dict[str, Capacity]:
        """The capacity of every tag that live workers serve, in one pass over the workers."""
        serving: dict[str, list[WorkerRecord]] = {}
        for record in self._records.values():
            if self.is_alive(record, now=now):
                for tag in set(record.tags):
                    serving.setdefault(tag, []).append(record)
        return {tag: _capacity_of(workers) for tag, workers in serving.items()}

    def _on_change(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._records.pop(key, None)
            return
        try:
            record = WorkerRecord.decode(value)
        except MalformedMessage as error:
            logger.warning("worker record %s cannot be read: %s", key, error)
            return
        if record.worker_id != key:
            logger.warning("worker record %s is ignored: it is of another worker", key)
            return
        self._records[key] = record
        if record.state is not WorkerState.STOPPED_GRACEFUL:
            self._on_tags(key, record.tags)


def _capacity_of(serving: Sequence[WorkerRecord]) -> Capacity:
    """Add up the live workers of a tag. A drained worker takes no jobs."""
    taking = [worker for worker in serving if not worker.draining]
    return Capacity(
        workers=len(taking),
        draining=len(serving) - len(taking),
        free_slots=sum(max(worker.slots - len(worker.current_run_ids), 0) for worker in taking),
        held=sum(len(worker.current_run_ids) for worker in serving),
    )

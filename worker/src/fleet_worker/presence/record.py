"""The worker's record in the registry: identity, state, runs in hand, heartbeat (appendices F and G)."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.status import RunStatus, WorkerState
from fleet_contracts.worker_record import WheelSync, WorkerRecord
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink, WrongRevision
from fleet_kit.nats.stores.kv import Bucket

from ..settings import WorkerSettings
from .control import ControlLine
from .machine import MachineGauge

logger = logging.getLogger(__name__)

# A server of a NATS cluster may lag behind: the pause between reads, and how many reads to wait for it.
_LAG_SECONDS = 0.05
_LOOKS_PAST_LAG = 40
# The record is written no more often than this, however many runs begin and end.
_WRITE_INTERVAL_SECONDS = 0.25
# Flow names are in the record for people to read; a list of thousands is cut.
_FLOWS_BYTES = 16 * 1024
_ERROR_CHARACTERS = 2000
_LAST_RUN = {"last_run_id", "last_run_status", "last_run_started_at", "last_run_finished_at"}


class NotOurs(Exception):
    """The worker's id belongs to another living instance."""


class Registry:
    """Writes the worker's registry record. Changes are collected and written together.

    `hidden` and `draining` belong to the operators and are kept, also from an earlier instance of this worker id. A
    record belongs to one instance. A new instance takes it over only from the one that it found silent; an instance
    whose record was taken over stops. Compare-and-set decides, so of two that begin at once one is refused.

    The loop of `Documents` is not used: it asks the bucket's leader, which a worker may do for the records of all
    workers or not at all. Stale reads are waited out instead.
    """

    def __init__(
        self,
        link: NatsLink,
        settings: WorkerSettings,
        *,
        instance_id: str,
        flows: Callable[[], Iterable[str]] = tuple,
        flows_error: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._bucket = Bucket(link, settings.workers_kv_bucket)
        self._link = link
        self._flows = flows
        self._flows_error = flows_error
        self._heartbeat_seconds = settings.worker_heartbeat_interval_sec
        self._gauge = MachineGauge()
        self._lock = asyncio.Lock()
        # Of the record's key as it was last read or written, markers of a removal included; 0: there was none.
        self._revision = 0
        # The instance id that the record had when we began.
        self._predecessor: str | None = None
        self._is_ours = False
        self._changed = True
        self._written_at = 0.0
        self._measured_at = float("-inf")
        self._runs: dict[str, float] = {}
        # Writes of the record, for the metrics.
        self.writes = 0
        # Fields of the next write, besides the runs in hand.
        self._unwritten: dict[str, Any] = {}
        # Called once, when another instance has taken over the record.
        self.on_lost: Callable[[NotOurs], None] = lambda _: None
        # Called when an operator has begun, or ended, to drain the worker.
        self.on_draining: Callable[[bool], None] = lambda _: None
        now = time.time()
        self._record = WorkerRecord(
            worker_id=settings.worker_id,
            instance_id=instance_id,
            state=WorkerState.IDLE,
            last_seen_at=now,
            last_heartbeat_at=now,
            started_at=now,
            tags=settings.tags,
            slots=settings.slots,
        )

    @property
    def is_draining(self) -> bool:
        return self._record.draining

    def run_started(self, run_id: str) -> None:
        self._runs[run_id] = time.time()
        self._changed = True

    def run_ended(self, run_id: str, status: RunStatus | None) -> None:
        """The run is no longer in hand; `status` is None if it did not end here."""
        started_at = self._runs.pop(run_id, None)
        if status is not None and started_at is not None:
            self._unwritten |= {
                "last_run_id": run_id,
                "last_run_status": status.value,
                "last_run_started_at": started_at,
                "last_run_finished_at": time.time(),
            }
        self._changed = True

    def flows_changed(self) -> None:
        self._changed = True

    def wheels_synced(self, wheels: WheelSync) -> None:
        self._unwritten["wheel_sync"] = wheels
        self._changed = True

    async def introduce(self, control: ControlLine) -> None:
        """Open the control subject of this worker id. Raises NotOurs if another living worker listens there."""
        if control.is_open:
            return
        found = await self._read()
        self._predecessor = None if found is None else found.instance_id
        if (other := await control.find_other_instance()) is not None:
            raise NotOurs(self._taken(found if found is not None and found.instance_id == other else None))
        await control.open()

    async def claim(self) -> None:
        """Write the record for the first time, or check after a reconnect that it is still ours; else NotOurs."""
        if not self._is_ours:
            await self._measure()
        async with self._lock:
            try:
                if await self._read_again() is None or not self._is_ours:
                    await self._write()
            except NotOurs:
                self._is_ours = False
                raise
            self._is_ours = True

    async def look(self) -> None:
        """Read the record at once, after a hint that it has changed."""
        try:
            async with self._lock:
                await self._read_again()
        except NatsUnavailable:
            self._changed = True  # the next write finds the change
        except NotOurs as error:
            self._lose(error)

    async def keep(self) -> None:
        while True:
            due = self._changed or time.monotonic() - self._written_at >= self._heartbeat_seconds
            # Also while it waits for its queues: the worker is alive.
            if due and self._is_ours and self._link.client.is_connected:
                await self._measure()
                await self._try_write()
            await asyncio.sleep(_WRITE_INTERVAL_SECONDS)

    async def record_stop(self) -> None:
        if not self._is_ours:
            return
        self._runs.clear()
        self._unwritten |= {
            "state": WorkerState.STOPPED_GRACEFUL,
            "stopped_at": time.time(),
            "stop_reason": "graceful_shutdown",
        }
        await self._try_write()

    async def _measure(self) -> None:
        """Read CPU and memory use, in a thread: with thousands of processes it takes a while."""
        now = time.monotonic()
        if now - self._measured_at >= self._heartbeat_seconds:
            self._measured_at = now
            self._unwritten["machine"] = await asyncio.to_thread(self._gauge.read)

    async def _try_write(self) -> None:
        async with self._lock:
            try:
                await self._write()
            except NatsUnavailable as error:
                logger.warning("the worker's registry record could not be written: %s", error)
                self._changed = True
            except NotOurs as error:
                self._lose(error)

    async def _write(self) -> None:
        self._changed = False
        self._written_at = time.monotonic()
        unwritten, self._unwritten = self._unwritten, {}
        runs = {
            "state": WorkerState.RUNNING if self._runs else WorkerState.IDLE,
            "current_run_id": next(reversed(self._runs), None),
            "current_run_ids": list(self._runs),
            "flows": _cut(self._flows()),
            "flows_error": None if (error := self._flows_error()) is None else error[:_ERROR_CHARACTERS],
        }
        self._record = self._record.model_copy(update={**runs, **unwritten})
        while True:
            now = time.time()
            record = self._record = self._record.model_copy(update={"last_seen_at": now, "last_heartbeat_at": now})
            try:
                self._revision = await self._bucket.update(record.worker_id, record.encode(), revision=self._revision)
            except WrongRevision:
                await self._read_again()
            else:
                self.writes += 1
                return

    async def _read(self) -> WorkerRecord | None:
        """The record as it stands; None if there is none, or none that can be read."""
        entry, self._revision = await self._bucket.look_up(self._record.worker_id)
        try:
            return None if entry is None else WorkerRecord.decode(entry.value)
        except MalformedMessage:
            logger.warning("the worker's registry record was unreadable and is written anew")
            return None

    async def _read_again(self) -> WorkerRecord | None:
        """Read the record, and keep the fields that operators, or an earlier instance of this worker, have set."""
        known = self._revision
        found = await self._read()
        for _ in range(_LOOKS_PAST_LAG):
            if self._revision >= known:
                break
            # A stale read from a cluster: the record was perhaps not ours yet then. (If the revision stays lower, the
            # bucket has been made anew and counts from the beginning.)
            await asyncio.sleep(_LAG_SECONDS)
            found = await self._read()
        if found is None:
            return None
        if found.instance_id != self._record.instance_id and (
            self._is_ours or found.instance_id != self._predecessor
        ):
            raise NotOurs(self._taken(found))
        kept = {"hidden": found.hidden, "draining": found.draining, **(found.model_extra or {})}
        if found.instance_id != self._record.instance_id and self._record.last_run_id is None:
            kept |= found.model_dump(include=_LAST_RUN)
        was_draining = self.is_draining
        self._record = self._record.model_copy(update=kept)
        if self.is_draining != was_draining:
            self.on_draining(self.is_draining)
        return found

    def _lose(self, error: NotOurs) -> None:
        if self._is_ours:
            self._is_ours = False
            self.on_lost(error)

    def _taken(self, by: WorkerRecord | None) -> str:
        where = ""
        if by is not None and by.machine.pid is not None:
            where = f", process {by.machine.pid} on {by.machine.host}"
        return (
            f"the worker id {self._record.worker_id} belongs to another living worker{where}; "
            "stop that one, or start this one with another --worker-id"
        )


def _cut(names: Iterable[str]) -> list[str]:
    kept: list[str] = []
    room = _FLOWS_BYTES
    for name in names:
        room -= len(name.encode()) + 3
        if room < 0:
            break
        kept.append(name)
    return kept

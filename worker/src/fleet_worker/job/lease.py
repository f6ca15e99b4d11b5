"""The lease on a run: the holder's writes of its snapshot, fenced by revision, attempt and instance id."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.problems import Problem
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.logs.setup import problem_fields
from fleet_kit.nats.kv import Bucket
from fleet_kit.nats.link import NatsLink, WrongRevision

from ..boundary.compaction import compact, without_tasks
from .telemetry.run_trace import writing

logger = logging.getLogger(__name__)

# Room for the headers of a message within NATS's maximum payload.
_HEADER_ROOM_BYTES = 1024
_RECORD_SECONDS = 30.0
_RECORD_PAUSE_SECONDS = 0.1


class ClaimLost(Exception):
    """Another worker has claimed the run, or another writer has ended it."""


class SnapshotWriter:
    """Reads and writes snapshots in the runs bucket, each within the size limit."""

    def __init__(
        self, link: NatsLink, bucket: str, *, max_bytes: int, on_write: Callable[[int], None] = lambda _: None
    ) -> None:
        """`on_write` is called with the size of every snapshot that was written."""
        self._on_write = on_write
        self._link = link
        self._bucket = Bucket(link, bucket)
        self._max_bytes = max_bytes

    async def read(self, run_id: str, *, linearizable: bool = False) -> tuple[RunSnapshot, int, bytes] | None:
        """The snapshot, its revision and its bytes. MalformedMessage if it is none."""
        entry = await self._bucket.get(run_id, linearizable=linearizable)
        return None if entry is None else (RunSnapshot.decode(entry.value), entry.revision, entry.value)

    async def write(self, snapshot: RunSnapshot, *, revision: int) -> int:
        with writing(snapshot):
            return await self.write_encoded(snapshot.run_id, self.encode(snapshot), revision=revision)

    async def write_encoded(self, run_id: str, data: bytes, *, revision: int) -> int:
        written = await self._bucket.update(run_id, data, revision=revision)
        self._on_write(len(data))
        return written

    def encode(self, snapshot: RunSnapshot) -> bytes:
        data = snapshot.encode()
        # NATS refuses larger messages, whatever the setting says.
        most = self._link.max_payload - _HEADER_ROOM_BYTES
        limit = min(self._max_bytes, most)
        if len(data) <= limit:
            return data
        smaller = compact(snapshot, limit)
        data = smaller.encode()
        if len(data) > limit:
            if snapshot.is_terminal:
                self._log_too_large(snapshot.run_id, len(data), limit)
            if len(data) > most:
                data = without_tasks(smaller).encode()
        return data

    def _log_too_large(self, run_id: str, size: int, limit: int) -> None:
        logger.error(
            "the snapshot of run %s has %d bytes without its task records, more than the limit of %d; "
            "set PYOCO_MAX_RUN_SNAPSHOT_BYTES higher",
            run_id,
            size,
            limit,
            extra={"run_id": run_id, **problem_fields(Problem.SNAPSHOT_TOO_LARGE)},
        )


class Lease:
    """Our claim on one run. Every write expects the revision of the one before."""

    def __init__(self, writer: SnapshotWriter, snapshot: RunSnapshot, revision: int) -> None:
        assert snapshot.worker_instance_id is not None
        self._writer = writer
        self._snapshot = snapshot
        self._revision = revision
        self._instance_id = snapshot.worker_instance_id
        self._lock = asyncio.Lock()
        # Last writes that may have been stored although they were not acknowledged.
        self._unsure: set[bytes] = set()
        # Called when the snapshot shows a cancel request.
        self.on_cancel: Callable[[], None] | None = None
        self.attempt = snapshot.attempt
        self.written_at = time.monotonic()

    @property
    def snapshot(self) -> RunSnapshot:
        return self._snapshot

    @property
    def is_writing(self) -> bool:
        return self._lock.locked()

    async def write_progress(self, **changes: Any) -> None:
        """Write the heartbeat, together with these changes."""
        now = time.time()
        await self._write(
            lambda snapshot: snapshot.model_copy(update={**changes, "heartbeat_at": now, "updated_at": now})
        )

    async def write_last(self, change: Callable[[RunSnapshot], RunSnapshot]) -> RunSnapshot:
        """Write the last state, in which the run ends or waits again: `change` applied to the latest snapshot.

        Returns what was written. May be repeated with the same change until it succeeds.
        """
        await self._write(change)
        return self._snapshot

    async def record_attempt(self) -> None:
        """Add this attempt to the run's history after a lost claim, in case NATS has lost the write that named it.

        It is retried for a while: the snapshot itself may have to be made anew first.
        """
        ends_at = time.monotonic() + _RECORD_SECONDS
        while time.monotonic() < ends_at:
            try:
                found = await self._writer.read(self._snapshot.run_id, linearizable=True)
                if found is not None:
                    recorded = found[0].with_lost_attempt(self._snapshot, now=time.time())
                    if recorded is not found[0]:
                        await self._writer.write(recorded, revision=found[1])
                    return
            except WrongRevision:
                continue
            except (NatsUnavailable, MalformedMessage) as error:
                logger.debug("the lost attempt could not be recorded yet: %s", error)
            await asyncio.sleep(_RECORD_PAUSE_SECONDS)

    async def _write(self, change: Callable[[RunSnapshot], RunSnapshot]) -> None:
        async with self._lock:
            while True:
                changed = change(self._snapshot)
                data = self._writer.encode(changed)
                if not self._holds(changed):
                    self._unsure.add(data)
                try:
                    with writing(changed):
                        revision = await self._writer.write_encoded(changed.run_id, data, revision=self._revision)
                except WrongRevision:
                    if await self._read_again():
                        return
                    continue
                self._snapshot, self._revision = changed, revision
                self.written_at = time.monotonic()
                return

    async def _read_again(self) -> bool:
        """After a wrong revision, read who has written: True if it was our own unacknowledged last write."""
        try:
            # Linearizable: a stale read from before our claim would look as if we had lost it.
            found = await self._writer.read(self._snapshot.run_id, linearizable=True)
        except MalformedMessage as error:
            raise ClaimLost(f"the snapshot is unreadable: {error}") from error
        if found is None:
            raise ClaimLost("the snapshot is gone")
        snapshot, revision, data = found
        if not self._holds(snapshot):
            if data in self._unsure:
                self._snapshot, self._revision = snapshot, revision
                return True
            raise ClaimLost(f"attempt {snapshot.attempt} of {snapshot.worker_id or 'nobody'}, {snapshot.status}")
        self._snapshot, self._revision = snapshot, revision
        if snapshot.status is RunStatus.CANCELLING and self.on_cancel is not None:
            self.on_cancel()
        return False

    def _holds(self, snapshot: RunSnapshot) -> bool:
        return snapshot.is_held_by(self._instance_id, self.attempt)

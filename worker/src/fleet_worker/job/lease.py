"""The lease on a run: the holder's writes of its snapshot, fenced by revision, attempt and instance id."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from fleet_contracts.messages import MalformedMessage
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.stores.documents import Stored

from .snapshots import Snapshots

logger = logging.getLogger(__name__)

_RECORD_SECONDS = 30.0
_RECORD_PAUSE_SECONDS = 0.1

Change = Callable[[RunSnapshot], RunSnapshot]


class ClaimLost(Exception):
    """Another worker has claimed the run, or another writer has ended it."""


class Lease:
    """Our claim on one run. Every write expects the revision of the one before."""

    def __init__(self, snapshots: Snapshots, claimed: Stored[RunSnapshot]) -> None:
        assert claimed.value.worker_instance_id is not None
        self._snapshots = snapshots
        # What we wrote last; None once another writer was seen.
        self._known: Stored[RunSnapshot] | None = claimed
        self._instance_id = claimed.value.worker_instance_id
        self._lock = asyncio.Lock()
        # Last writes that may have been stored although they were not acknowledged.
        self._unsure: list[RunSnapshot] = []
        # Called when the snapshot shows a cancel request.
        self.on_cancel: Callable[[], None] | None = None
        # As we last wrote it, or have seen it while it was ours.
        self.snapshot = claimed.value
        self.attempt = claimed.value.attempt
        self.written_at = time.monotonic()

    @property
    def is_writing(self) -> bool:
        return self._lock.locked()

    async def write_progress(self, **changes: Any) -> None:
        """Write the heartbeat, together with these changes."""
        now = time.time()
        await self.write(lambda snapshot: snapshot.heartbeat(now=now, **changes))

    async def record_attempt(self) -> None:
        """Add this attempt to the run's history after a lost claim, in case NATS has lost the write that named it.

        It is retried for a while: the snapshot itself may have to be made anew first.
        """

        def with_our_attempt(found: RunSnapshot | None) -> RunSnapshot | None:
            return None if found is None else found.with_lost_attempt(self.snapshot, now=time.time())

        run_id, ends_at = self.snapshot.run_id, time.monotonic() + _RECORD_SECONDS
        while time.monotonic() < ends_at:
            try:
                if await self._snapshots.change(run_id, with_our_attempt, linearizable=True) is not None:
                    return
            except (NatsUnavailable, MalformedMessage) as error:
                logger.debug("the lost attempt could not be recorded yet: %s", error)
            await asyncio.sleep(_RECORD_PAUSE_SECONDS)

    async def write(self, change: Change) -> RunSnapshot:
        """Write what the change makes of the latest snapshot, and return that.

        A last write, after which the run is no longer ours, may be repeated with the same change until it succeeds.
        """
        async with self._lock:
            try:
                # Linearizable: a stale read from before our claim would look as if we had lost it.
                stored = await self._snapshots.change(
                    self.snapshot.run_id,
                    lambda found: self._changed(found, change),
                    known=self._known,
                    linearizable=True,
                )
            except MalformedMessage as error:
                raise ClaimLost(f"the snapshot is unreadable: {error}") from error
            assert stored is not None
            self._known, self.snapshot = stored, stored.value
            self.written_at = time.monotonic()
            return stored.value

    def _changed(self, found: RunSnapshot | None, change: Change) -> RunSnapshot:
        """The next state of the run, if what was found is still ours; ClaimLost if it is not."""
        if self._known is None or found is not self._known.value:
            # Another writer has changed the snapshot since our last write, or that was not acknowledged.
            self._known = None
            if found is None:
                raise ClaimLost("the snapshot is gone")
            if not self._holds(found):
                if any(found == self._snapshots.as_stored(last) for last in self._unsure):
                    return found
                raise ClaimLost(f"attempt {found.attempt} of {found.worker_id or 'nobody'}, {found.status}")
            self.snapshot = found
            if found.status is RunStatus.CANCELLING and self.on_cancel is not None:
                self.on_cancel()
        changed = change(found)
        if not self._holds(changed) and changed not in self._unsure:
            self._unsure.append(changed)
        return changed

    def _holds(self, snapshot: RunSnapshot) -> bool:
        return snapshot.is_held_by(self._instance_id, self.attempt)

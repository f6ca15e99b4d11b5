"""May this worker execute this job? The decision as a pure rule, and the claim that follows from it."""

import asyncio
import time
from enum import Enum, auto

from fleet_contracts.job import Job
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.nats import WrongRevision

from .delivery import Delivery
from .disposition import AlreadyEnded, Ended, HeldElsewhere, InvalidJob, RunMissing
from .lease import Lease, SnapshotWriter
from .settings import WorkerSettings

_DELIVERIES_BEFORE_MISSING = 3
_HELD_RETRY_SECONDS = 5.0
_LOOK_INTERVAL_SECONDS = 0.5

NoClaim = InvalidJob | RunMissing | AlreadyEnded | HeldElsewhere | Ended


class Holder(Enum):
    """What watching another holder's snapshot has shown."""

    UNWATCHED = auto()
    ALIVE = auto()
    SILENT = auto()


class Decision(Enum):
    AWAIT_SNAPSHOT = auto()
    GIVE_UP = auto()
    ACKNOWLEDGE = auto()
    CANCEL = auto()
    CLAIM = auto()
    TAKE_OVER = auto()
    WATCH = auto()
    LEAVE = auto()


def decide(snapshot: RunSnapshot | None, *, instance_id: str, num_delivered: int, holder: Holder) -> Decision:
    """What to do with a job that this worker does not have in hand.

    Clocks of other machines are not trusted: a holder is lost when its snapshot stays still while we
    look, not when its last heartbeat seems old.
    """
    if snapshot is None:
        return Decision.AWAIT_SNAPSHOT if num_delivered < _DELIVERIES_BEFORE_MISSING else Decision.GIVE_UP
    if snapshot.is_terminal:
        return Decision.ACKNOWLEDGE
    held_elsewhere = snapshot.is_held and snapshot.worker_instance_id != instance_id
    if held_elsewhere and holder is Holder.UNWATCHED:
        return Decision.WATCH
    if held_elsewhere and holder is Holder.ALIVE:
        return Decision.LEAVE
    if snapshot.status is RunStatus.CANCELLING:
        return Decision.CANCEL
    return Decision.TAKE_OVER if held_elsewhere else Decision.CLAIM


class Claims:
    """Claims runs for one life of a worker."""

    def __init__(
        self,
        writer: SnapshotWriter,
        settings: WorkerSettings,
        *,
        instance_id: str,
        stopping: asyncio.Event,
    ) -> None:
        self._writer = writer
        self._settings = settings
        self._instance_id = instance_id
        self._stopping = stopping

    async def claim(self, job: Job, delivery: Delivery) -> Lease | NoClaim:
        """A lease on the run, or why there is none. NatsUnavailable if NATS cannot tell."""
        try:
            return await self._claim(job, delivery)
        except MalformedMessage as error:
            return InvalidJob(f"the snapshot of the run is unreadable: {error}")

    async def _claim(self, job: Job, delivery: Delivery) -> Lease | NoClaim:
        holder, watched = Holder.UNWATCHED, 0
        while True:
            found = await self._writer.read(job.run_id)
            snapshot, revision = (None, 0) if found is None else found[:2]
            if holder is Holder.SILENT and revision != watched:
                holder = Holder.ALIVE  # it moved after our last look
            decision = decide(
                snapshot, instance_id=self._instance_id, num_delivered=delivery.num_delivered, holder=holder
            )
            if snapshot is None:
                return RunMissing("no snapshot of this run exists", given_up=decision is Decision.GIVE_UP)
            if decision is Decision.ACKNOWLEDGE:
                return AlreadyEnded()
            if decision is Decision.LEAVE:
                return HeldElsewhere(_HELD_RETRY_SECONDS)
            if decision is Decision.WATCH:
                holder, watched = await self._watch(job.run_id, revision), revision
                continue
            wanted = self._change(snapshot, decision, delivery)
            try:
                revision = await self._writer.write(wanted, revision=revision)
            except WrongRevision:
                holder = Holder.UNWATCHED
                continue
            return Ended(wanted.status) if wanted.is_terminal else Lease(self._writer, wanted, revision)

    def _change(self, snapshot: RunSnapshot, decision: Decision, delivery: Delivery) -> RunSnapshot:
        now = time.time()
        if decision is Decision.CANCEL:
            return snapshot.finish(RunStatus.CANCELLED, now=now)
        if decision is Decision.TAKE_OVER:
            snapshot = snapshot.hand_back(now=now, interrupted=True)
        return snapshot.claim(
            worker_id=self._settings.worker_id,
            worker_instance_id=self._instance_id,
            ack_subject=delivery.reply,
            now=now,
        )

    async def _watch(self, run_id: str, revision: int) -> Holder:
        """Look at another holder's snapshot until it moves, or has been still for too long."""
        deadline = time.monotonic() + self._settings.run_lost_after_sec
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _LOOK_INTERVAL_SECONDS))
            found = await self._writer.read(run_id)
            if found is None or found[1] != revision or self._stopping.is_set():
                return Holder.ALIVE
        return Holder.SILENT

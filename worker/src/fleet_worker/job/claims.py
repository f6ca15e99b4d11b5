"""Claims runs: a pure rule decides about a job, and a compare-and-set write takes the run."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.wheel import WheelInUse
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import WriteRefused, WrongRevision

from ..settings import WorkerSettings
from .delivery import Delivery
from .disposition import AlreadyEnded, Ended, HeldElsewhere, InvalidJob, NotYet, RunMissing
from .lease import Lease, SnapshotWriter
from .rules import is_past_deadline, seconds_until_due

_DELIVERIES_BEFORE_MISSING = 3
_HELD_RETRY_SECONDS = 5.0
_LOOK_INTERVAL_SECONDS = 0.5
# How long a claim is retried: less than AckWait (30 s), after which JetStream redelivers the job.
_OUTAGE_SECONDS = 25.0
_OUTAGE_PAUSE_SECONDS = 0.25

logger = logging.getLogger(__name__)

NoClaim = InvalidJob | RunMissing | AlreadyEnded | HeldElsewhere | NotYet | Ended


class Holder(Enum):
    """Whether the current holder of a run is alive, as far as its snapshot was watched."""

    UNWATCHED = auto()
    ALIVE = auto()
    SILENT = auto()


class Decision(Enum):
    AWAIT_SNAPSHOT = auto()
    GIVE_UP = auto()
    ACKNOWLEDGE = auto()
    CANCEL = auto()
    EXPIRE = auto()
    WAIT = auto()
    CLAIM = auto()
    TAKE_OVER = auto()
    WATCH = auto()
    LEAVE = auto()


def decide(
    snapshot: RunSnapshot | None, *, instance_id: str, num_delivered: int, holder: Holder, now: float
) -> Decision:
    """Decide what to do with a job that this worker does not have in hand.

    Clocks of other machines are not trusted: a holder is lost when its snapshot does not change while we watch it,
    not when its last heartbeat seems old. A run's due time and deadline are compared with our own clock.
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
    if is_past_deadline(snapshot, now=now):
        return Decision.EXPIRE
    if not snapshot.is_held and seconds_until_due(snapshot, now=now) > 0:
        return Decision.WAIT
    return Decision.TAKE_OVER if held_elsewhere else Decision.CLAIM


class Claims:
    """Claims runs for one instance of a worker."""

    def __init__(
        self,
        writer: SnapshotWriter,
        settings: WorkerSettings,
        *,
        instance_id: str,
        stopping: asyncio.Event,
        wheels_in_force: Callable[[], Sequence[WheelInUse]] = tuple,
        on_conflict: Callable[[], None] = lambda: None,
        outage_seconds: float = _OUTAGE_SECONDS,
    ) -> None:
        """`on_conflict` is called when a compare-and-set fails because another writer was first.

        During a NATS outage, a claim is retried for `outage_seconds`.
        """
        self._outage_seconds = outage_seconds
        self._on_conflict = on_conflict
        self._writer = writer
        self._settings = settings
        self._instance_id = instance_id
        self._stopping = stopping
        self._wheels_in_force = wheels_in_force

    async def claim(self, job: Job, delivery: Delivery) -> Lease | NoClaim:
        """A lease on the run, or why there is none. NatsUnavailable if NATS refuses the claim or is away too long.

        A claim that NATS has not acknowledged may have been written: the next try finds it and goes on from there.
        """
        give_up_at = time.monotonic() + self._outage_seconds
        while True:
            try:
                return await self._claim(job, delivery)
            except MalformedMessage as error:
                return InvalidJob(f"the snapshot of the run is unreadable: {error}")
            except WriteRefused:
                raise
            except NatsUnavailable as error:
                if time.monotonic() > give_up_at or self._stopping.is_set():
                    raise
                logger.info("the claim is tried again: %s", error)
            await asyncio.sleep(_OUTAGE_PAUSE_SECONDS)

    async def _claim(self, job: Job, delivery: Delivery) -> Lease | NoClaim:
        holder, watched = Holder.UNWATCHED, 0
        linearizable = False
        while True:
            found = await self._writer.read(job.run_id, linearizable=linearizable)
            snapshot, revision = (None, 0) if found is None else found[:2]
            if not linearizable and (snapshot is None or snapshot.is_terminal):
                # Perhaps a stale read from a cluster: the run may have been written, or reopened, since.
                linearizable = True
                continue
            if holder is Holder.SILENT and revision != watched:
                holder = Holder.ALIVE  # it has changed after our last read
            now = time.time()
            decision = decide(
                snapshot, instance_id=self._instance_id, num_delivered=delivery.num_delivered, holder=holder, now=now
            )
            if snapshot is None:
                return RunMissing("no snapshot of this run exists", given_up=decision is Decision.GIVE_UP)
            if decision is Decision.ACKNOWLEDGE:
                return AlreadyEnded(snapshot)
            if decision is Decision.LEAVE:
                return HeldElsewhere(_HELD_RETRY_SECONDS)
            if decision is Decision.WAIT:
                return NotYet(seconds_until_due(snapshot, now=now))
            if decision is Decision.WATCH:
                holder, watched = await self._watch(job.run_id, revision), revision
                continue
            wanted = self._change(snapshot, decision, delivery, now)
            try:
                revision = await self._writer.write(wanted, revision=revision)
            except WrongRevision:
                self._on_conflict()
                holder, linearizable = Holder.UNWATCHED, True
                continue
            match decision:
                case Decision.CANCEL:
                    return Ended(wanted.status, snapshot=wanted)
                case Decision.EXPIRE:
                    return Ended(wanted.status, wanted.error, DeadLetterReason.DEADLINE_EXCEEDED, wanted)
            return Lease(self._writer, wanted, revision)

    def _change(self, snapshot: RunSnapshot, decision: Decision, delivery: Delivery, now: float) -> RunSnapshot:
        if decision is Decision.CANCEL:
            return snapshot.finish(RunStatus.CANCELLED, now=now)
        if decision is Decision.EXPIRE:
            late = now - (snapshot.deadline_at or now)
            error = f"the run's deadline passed {late:.1f} s before a worker could begin it"
            return snapshot.finish(RunStatus.FAILED, now=now, error=error, reason=DeadLetterReason.DEADLINE_EXCEEDED)
        if snapshot.is_held:
            # The previous attempt has no recorded end: its holder is lost, or it was our own during a NATS outage.
            snapshot = snapshot.hand_back(now=now, interrupted=decision is Decision.TAKE_OVER)
        return snapshot.claim(
            worker_id=self._settings.worker_id,
            worker_instance_id=self._instance_id,
            ack_subject=delivery.reply,
            now=now,
            wheels=self._wheels_in_force(),
        )

    async def _watch(self, run_id: str, revision: int) -> Holder:
        """Watch another holder's snapshot until it changes, or has not changed for `run_lost_after_sec`."""
        deadline = time.monotonic() + self._settings.run_lost_after_sec
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _LOOK_INTERVAL_SECONDS))
            found = await self._writer.read(run_id)
            if found is None or found[1] != revision or self._stopping.is_set():
                return Holder.ALIVE
        return Holder.SILENT

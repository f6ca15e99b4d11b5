"""Claims runs: a pure rule decides about a job, and a compare-and-set write takes the run."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.wheel import WheelInUse
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import WriteRefused

from ..settings import WorkerSettings
from .delivery import Delivery
from .disposition import AlreadyEnded, Ended, HeldElsewhere, InvalidJob, NoClaim, NotYet, RunMissing
from .lease import Lease
from .rules import is_past_deadline, seconds_until_due
from .snapshots import Snapshots

_DELIVERIES_BEFORE_MISSING = 3
_HELD_RETRY_SECONDS = 5.0
_LOOK_INTERVAL_SECONDS = 0.5
# Less than AckWait (30 s), after which JetStream redelivers the job.
_OUTAGE_SECONDS = 25.0
_OUTAGE_PAUSE_SECONDS = 0.25

logger = logging.getLogger(__name__)


class Holder(Enum):
    """Whether the current holder of a run is alive, as far as its snapshot was watched."""

    UNWATCHED = auto()
    ALIVE = auto()
    SILENT = auto()


class Decision(Enum):
    """What this worker does with a run that it may change."""

    WATCH = auto()
    CANCEL = auto()
    EXPIRE = auto()
    CLAIM = auto()
    TAKE_OVER = auto()


class _NotClaimable(Exception):
    """The run is left to others, or to a later time."""

    def __init__(self, outcome: HeldElsewhere | NotYet) -> None:
        self.outcome = outcome


def decide(
    snapshot: RunSnapshot | None, *, instance_id: str, num_delivered: int, holder: Holder, now: float
) -> Decision | NoClaim:
    """Decide what to do with a job that this worker does not have in hand.

    Clocks of other machines are not trusted: a holder is lost when its snapshot does not change while we watch it,
    not when its last heartbeat seems old. A run's due time and deadline are compared with our own clock.
    """
    if snapshot is None:
        given_up = num_delivered >= _DELIVERIES_BEFORE_MISSING
        return RunMissing("no snapshot of this run exists", given_up=given_up)
    if snapshot.is_terminal:
        return AlreadyEnded(snapshot)
    held_elsewhere = snapshot.is_held and snapshot.worker_instance_id != instance_id
    if held_elsewhere and holder is Holder.UNWATCHED:
        return Decision.WATCH
    if held_elsewhere and holder is Holder.ALIVE:
        return HeldElsewhere(_HELD_RETRY_SECONDS)
    if snapshot.status is RunStatus.CANCELLING:
        return Decision.CANCEL
    if is_past_deadline(snapshot, now=now):
        return Decision.EXPIRE
    if not snapshot.is_held and (seconds := seconds_until_due(snapshot, now=now)) > 0:
        return NotYet(seconds)
    return Decision.TAKE_OVER if held_elsewhere else Decision.CLAIM


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Claims runs for one instance of a worker."""

    snapshots: Snapshots
    settings: WorkerSettings
    instance_id: str
    stopping: asyncio.Event
    wheels_in_force: Callable[[], Sequence[WheelInUse]] = tuple
    # Called when a compare-and-set fails because another writer was first.
    on_conflict: Callable[[], None] | None = None
    # How long a claim is retried during a NATS outage.
    outage_seconds: float = _OUTAGE_SECONDS

    async def claim(self, job: Job, delivery: Delivery) -> Lease | NoClaim:
        """A lease on the run, or why there is none. NatsUnavailable if NATS refuses the claim or is away too long.

        A claim that NATS has not acknowledged may have been written: the next try finds it and goes on from there.
        """
        give_up_at = time.monotonic() + self.outage_seconds
        while True:
            try:
                return await self._claim(job.run_id, delivery)
            except _NotClaimable as left:
                return left.outcome
            except MalformedMessage as error:
                return InvalidJob(f"the snapshot of the run is unreadable: {error}")
            except WriteRefused:
                raise
            except NatsUnavailable as error:
                if time.monotonic() > give_up_at or self.stopping.is_set():
                    raise
                logger.info("the claim is tried again: %s", error)
            await asyncio.sleep(_OUTAGE_PAUSE_SECONDS)

    async def _claim(self, run_id: str, delivery: Delivery) -> Lease | NoClaim:
        judge = partial(decide, instance_id=self.instance_id, num_delivered=delivery.num_delivered)
        outcome: NoClaim | None = None

        async def transition(snapshot: RunSnapshot | None) -> RunSnapshot | None:
            nonlocal outcome
            decision = judge(snapshot, holder=Holder.UNWATCHED, now=time.time())
            if snapshot is not None and decision is Decision.WATCH:
                holder = await self._watch(snapshot)
                decision = judge(snapshot, holder=holder, now=time.time())
            if isinstance(decision, HeldElsewhere | NotYet):
                raise _NotClaimable(decision)
            if snapshot is None or not isinstance(decision, Decision):
                # Missing or ended: unchanged, it is read once more, as a server of a cluster may lag behind.
                assert not isinstance(decision, Decision)
                outcome = decision
                return snapshot
            changed = self._changed(snapshot, decision, delivery)
            reason = DeadLetterReason(changed.reason) if changed.reason is not None else None
            outcome = Ended(changed.status, changed.error, reason, changed) if changed.is_terminal else None
            return changed

        stored = await self.snapshots.change(run_id, transition, on_conflict=self.on_conflict)
        if outcome is not None:
            return outcome
        assert stored is not None
        return Lease(self.snapshots, stored)

    def _changed(self, snapshot: RunSnapshot, decision: Decision, delivery: Delivery) -> RunSnapshot:
        now = time.time()
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
            worker_id=self.settings.worker_id,
            worker_instance_id=self.instance_id,
            ack_subject=delivery.reply,
            now=now,
            wheels=self.wheels_in_force(),
        )

    async def _watch(self, snapshot: RunSnapshot) -> Holder:
        """Watch another holder's snapshot until it changes, or has not changed for `run_lost_after_sec`.

        A change that comes later, or is not seen, is found by the compare-and-set.
        """
        deadline = time.monotonic() + self.settings.run_lost_after_sec
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _LOOK_INTERVAL_SECONDS))
            found = await self.snapshots.read(snapshot.run_id)
            if found is None or found.value != snapshot or self.stopping.is_set():
                return Holder.ALIVE
        return Holder.SILENT

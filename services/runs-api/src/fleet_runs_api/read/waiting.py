"""Why a run has not begun: a reason for programs and a sentence for people."""

from dataclasses import dataclass
from enum import StrEnum

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from ..ledger.texts import iso
from ..live.workers import FleetView


class WaitingReason(StrEnum):
    SCHEDULE = "schedule"
    RETRY = "retry"
    NO_WORKER = "no_worker"
    QUEUE = "queue"
    DELIVERY = "delivery"
    DEADLINE = "deadline"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: WaitingReason
    detail: str


def why_waiting(
    *,
    status: RunStatus,
    tag: str,
    held: bool,
    not_before: float | None,
    deadline_at: float | None,
    failures: int,
    workers: FleetView,
    now: float,
    unclaimed: bool = False,
) -> Waiting | None:
    """The reason why a run waits; None for a run that a worker holds or that has ended."""
    if held or status.is_terminal or status is RunStatus.RUNNING:
        return None
    if status is RunStatus.CANCELLING:
        return Waiting(WaitingReason.CANCEL, "a cancel was requested; the run ends without beginning again")
    if deadline_at is not None and deadline_at <= now:
        return Waiting(WaitingReason.DEADLINE, f"its deadline {iso(deadline_at)} has passed; it is about to be ended")
    if not_before is not None and not_before > now:
        if failures:
            often = "once" if failures == 1 else f"{failures} times"
            again = f"the flow has failed {often}; the next attempt begins at {iso(not_before)}"
            return Waiting(WaitingReason.RETRY, again)
        return Waiting(WaitingReason.SCHEDULE, f"it may begin at {iso(not_before)}")
    capacity = workers.capacity(tag, now=now)
    if not capacity.workers:
        why = f"no live worker serves tag {tag}; start one"
        if capacity.draining:
            why = f"all workers of tag {tag} are draining; resume one (POST /workers/<id>/resume), or start another"
        return Waiting(WaitingReason.NO_WORKER, f"{why} with: {workers.start_command(tag)}")
    if not capacity.free_slots:
        return Waiting(WaitingReason.QUEUE, f"all workers of tag {tag} are busy; it is in their queue")
    if unclaimed:
        why = "its job was delivered, but no worker has claimed it; it is handed out again within seconds"
        return Waiting(WaitingReason.DELIVERY, why)
    return Waiting(WaitingReason.QUEUE, f"it is in the queue of tag {tag} and about to be taken")


def why_snapshot_waits(
    snapshot: RunSnapshot, workers: FleetView, *, now: float, unclaimed: bool = False
) -> Waiting | None:
    return why_waiting(
        status=snapshot.status,
        tag=snapshot.tag or "",
        held=snapshot.is_held,
        not_before=snapshot.not_before,
        deadline_at=snapshot.deadline_at,
        failures=snapshot.failures,
        workers=workers,
        now=now,
        unclaimed=unclaimed,
    )

"""Why a run has not begun: a reason for programs and a sentence for people."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from ..ledger.sql.texts import iso
from ..live.workers import Capacity, FleetView
from .schemas import RunSummary


class WaitingReason(StrEnum):
    SCHEDULE = "schedule"
    RETRY = "retry"
    NO_WORKER = "no_worker"
    FLOW = "flow"
    QUEUE = "queue"
    DELIVERY = "delivery"
    DEADLINE = "deadline"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: WaitingReason
    detail: str


def why_waiting(
    run: RunSnapshot | RunSummary,
    workers: FleetView,
    capacity: Callable[[str], Capacity],
    *,
    now: float,
    unclaimed: bool,
    declined: str | None,
) -> Waiting | None:
    """The reason why a run waits; None for a run that a worker holds or that has ended."""
    status, tag, not_before, deadline_at = run.status, run.tag or "", run.not_before, run.deadline_at
    if status is RunStatus.RUNNING or status.is_terminal or run.worker_id is not None:
        return None
    if status is RunStatus.CANCELLING:
        return Waiting(WaitingReason.CANCEL, "a cancel was requested; the run ends without beginning again")
    if deadline_at is not None and deadline_at <= now:
        return Waiting(WaitingReason.DEADLINE, f"its deadline {iso(deadline_at)} has passed; it is about to be ended")
    if not_before is not None and not_before > now:
        if run.failures:
            often = "once" if run.failures == 1 else f"{run.failures} times"
            again = f"the flow has failed {often}; the next attempt begins at {iso(not_before)}"
            return Waiting(WaitingReason.RETRY, again)
        return Waiting(WaitingReason.SCHEDULE, f"it may begin at {iso(not_before)}")
    serving = capacity(tag)
    if not serving.workers:
        why = f"no live worker serves tag {tag}; start one"
        if serving.draining:
            why = f"all workers of tag {tag} are draining; resume one (POST /workers/<id>/resume), or start another"
        return Waiting(WaitingReason.NO_WORKER, f"{why} with: {workers.start_command(tag)}")
    if declined is not None:
        return Waiting(WaitingReason.FLOW, declined)
    if not serving.free_slots:
        return Waiting(WaitingReason.QUEUE, f"all workers of tag {tag} are busy; it is in their queue")
    if unclaimed:
        why = "its job was delivered, but no worker has claimed it; it is handed out again within seconds"
        return Waiting(WaitingReason.DELIVERY, why)
    return Waiting(WaitingReason.QUEUE, f"it is in the queue of tag {tag} and about to be taken")

"""The result of an attempt, and the last change of the snapshot that follows from it."""

from collections.abc import Callable
from typing import Any

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.wheel import WheelInUse

from ..boundary.frames import Conclusion
from .rules import retry_at


def conclude(snapshot: RunSnapshot, conclusion: Conclusion, *, now: float, chance: float) -> RunSnapshot:
    """End the run, or schedule its retry. A failed run whose cancel was requested ends as CANCELLED."""
    status, error, reason = conclusion.status, conclusion.error, conclusion.reason
    snapshot = snapshot.model_copy(update=_reported(conclusion))
    if status is RunStatus.FAILED and snapshot.status is RunStatus.CANCELLING:
        status, reason = RunStatus.CANCELLED, None
    elif conclusion.flow_failed and (not_before := retry_at(snapshot, now=now, chance=chance)) is not None:
        return snapshot.retry_later(now=now, not_before=not_before, error=error, reason=reason)
    return snapshot.finish(status, now=now, error=error, reason=reason, result=conclusion.result)


def having_run_with(
    wheels: list[WheelInUse] | None, change: Callable[[RunSnapshot], RunSnapshot]
) -> Callable[[RunSnapshot], RunSnapshot]:
    """The same change, applied to the snapshot with these wheels."""
    if wheels is None:
        return change
    return lambda snapshot: change(
        snapshot if snapshot.wheels == wheels else snapshot.model_copy(update={"wheels": wheels})
    )


def with_sync_error(error: str | None, sync_error: str | None) -> str | None:
    return f"{error}; it may be missing because the last wheel sync failed: {sync_error}" if sync_error else error


def _reported(conclusion: Conclusion) -> dict[str, Any]:
    """The task states and records of the attempt; they stay visible while the run waits for its retry."""
    reported = {
        "tasks": conclusion.tasks,
        "task_records": conclusion.task_records,
        # A mark that was set before, with what the snapshot still has, stays.
        "task_records_truncated": conclusion.task_records_truncated or None,
        "result_truncated": conclusion.result_truncated or None,
    }
    return {name: value for name, value in reported.items() if value is not None}

"""The result of an attempt, and the last change of the snapshot that follows from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus, TaskStatus
from fleet_contracts.wheel import WheelInUse

from .rules import retry_at


@dataclass(frozen=True, slots=True)
class Conclusion:
    status: RunStatus
    error: str | None = None
    reason: DeadLetterReason | None = None
    # None: the snapshot keeps the states that it has.
    tasks: dict[str, TaskStatus] | None = None
    task_records: dict[str, Any] | None = None
    task_records_truncated: bool = False
    result: Any = None
    result_truncated: bool = False
    # The flow itself has failed, not the machinery around it: only such a failure is retried.
    flow_failed: bool = False


def conclude(snapshot: RunSnapshot, conclusion: Conclusion, *, now: float, chance: float) -> RunSnapshot:
    """End the run, or schedule its retry. A failed run whose cancel was requested ends as CANCELLED."""
    status, reason = conclusion.status, conclusion.reason
    if status is RunStatus.FAILED and snapshot.status is RunStatus.CANCELLING:
        status, reason = RunStatus.CANCELLED, None
    elif conclusion.flow_failed and (not_before := retry_at(snapshot, now=now, chance=chance)) is not None:
        shown = snapshot.model_copy(update=_told(conclusion))
        return shown.retry_later(now=now, not_before=not_before, error=conclusion.error, reason=reason)
    final = snapshot.finish(
        status,
        now=now,
        error=conclusion.error,
        reason=reason,
        tasks=conclusion.tasks,
        task_records=conclusion.task_records,
        result=conclusion.result,
    )
    marks = _marks(conclusion)
    return final.model_copy(update=marks) if marks else final


def having_run_with(
    wheels: list[WheelInUse] | None, change: Callable[[RunSnapshot], RunSnapshot]
) -> Callable[[RunSnapshot], RunSnapshot]:
    """The same change, applied to the snapshot with these wheels."""
    if wheels is None:
        return change
    return lambda snapshot: change(
        snapshot if snapshot.wheels == wheels else snapshot.model_copy(update={"wheels": wheels})
    )


def with_trouble(error: str | None, trouble: str | None) -> str | None:
    return f"{error}; it may be missing because the last wheel sync failed: {trouble}" if trouble else error


def _told(conclusion: Conclusion) -> dict[str, Any]:
    """The task states and records of the attempt; they stay visible while the run waits for its retry."""
    told: dict[str, Any] = {"tasks": conclusion.tasks, "task_records": conclusion.task_records}
    return {name: value for name, value in told.items() if value is not None} | _marks(conclusion)


def _marks(conclusion: Conclusion) -> dict[str, Any]:
    marks = {
        "task_records_truncated": conclusion.task_records_truncated,
        "result_truncated": conclusion.result_truncated,
    }
    return {name: True for name, is_set in marks.items() if is_set}

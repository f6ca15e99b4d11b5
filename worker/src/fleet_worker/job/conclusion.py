"""The result of an attempt, and the last change of the snapshot that follows from it."""

from typing import Any

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

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

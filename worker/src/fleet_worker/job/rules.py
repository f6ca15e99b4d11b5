"""The rules of a run: its due time, deadline and retry, and the last change that follows from an attempt's result."""

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from ..boundary.frames import Conclusion

# The clocks of two machines always differ a little; so short a wait is not worth a redelivery.
_CLOCK_SKEW_SECONDS = 0.05


def seconds_until_due(snapshot: RunSnapshot, *, now: float) -> float:
    """The time until the run may begin; 0 if it is due."""
    if snapshot.not_before is None or snapshot.not_before - now < _CLOCK_SKEW_SECONDS:
        return 0.0
    return snapshot.not_before - now


def is_past_deadline(snapshot: RunSnapshot, *, now: float) -> bool:
    return snapshot.deadline_at is not None and now >= snapshot.deadline_at


def waiting_since(snapshot: RunSnapshot, *, stored_at: float) -> float:
    """When the job of a run that was just claimed began to wait: not before the previous attempt had ended."""
    return max([stored_at, *(attempt.end_time for attempt in snapshot.earlier_attempts[-1:])])


def retry_at(snapshot: RunSnapshot, *, now: float, chance: float) -> float | None:
    """The time of the next attempt after a failure; None if no retry is left or it would begin after the deadline."""
    failures = snapshot.failures + 1
    if snapshot.retry is None or not snapshot.retry.allows_another(failures):
        return None
    at = now + snapshot.retry.delay_seconds(failures, chance)
    return None if is_past_deadline(snapshot, now=at) else at


def conclude(snapshot: RunSnapshot, conclusion: Conclusion, *, now: float, chance: float) -> RunSnapshot:
    """End the run, or schedule its retry. A failed run whose cancel was requested ends as CANCELLED."""
    status, error, reason = conclusion.status, conclusion.error, conclusion.reason
    snapshot = snapshot.with_report(
        tasks=conclusion.tasks,
        task_records=conclusion.task_records,
        task_records_truncated=conclusion.task_records_truncated,
        result_truncated=conclusion.result_truncated,
    )
    if status is RunStatus.FAILED and snapshot.status is RunStatus.CANCELLING:
        status, reason = RunStatus.CANCELLED, None
    elif conclusion.flow_failed and (not_before := retry_at(snapshot, now=now, chance=chance)) is not None:
        return snapshot.retry_later(now=now, not_before=not_before, error=error, reason=reason)
    return snapshot.finish(status, now=now, error=error, reason=reason, result=conclusion.result)

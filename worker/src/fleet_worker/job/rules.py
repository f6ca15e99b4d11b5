"""The rules that a run brings with it: when it may begin, until when it may go on, whether it is tried again."""

from fleet_contracts.snapshot import RunSnapshot

# The clocks of two machines are never quite the same; waiting for so little is not worth a delivery.
_CLOCK_SKEW_SECONDS = 0.05


def seconds_until_due(snapshot: RunSnapshot, *, now: float) -> float:
    """How long nobody may begin the run yet; 0 if it is due."""
    if snapshot.not_before is None or snapshot.not_before - now < _CLOCK_SKEW_SECONDS:
        return 0.0
    return snapshot.not_before - now


def is_past_deadline(snapshot: RunSnapshot, *, now: float) -> bool:
    return snapshot.deadline_at is not None and now >= snapshot.deadline_at


def waiting_since(snapshot: RunSnapshot, *, stored_at: float) -> float:
    """Since when the job of a run that was just claimed had waited: while another attempt went on it did not."""
    return max([stored_at, *(attempt.end_time for attempt in snapshot.earlier_attempts[-1:])])


def retry_at(snapshot: RunSnapshot, *, now: float, chance: float) -> float | None:
    """When a flow that has just failed is tried again; None if it is not, or could not begin before its deadline."""
    failures = snapshot.failures + 1
    if snapshot.retry is None or not snapshot.retry.allows_another(failures):
        return None
    at = now + snapshot.retry.delay_seconds(failures, chance)
    return None if is_past_deadline(snapshot, now=at) else at

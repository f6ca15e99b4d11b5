"""How a snapshot seen in KV changes what the ledger knows of a run: a rule without any SQL."""

from dataclasses import dataclass

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from ..ledger.known import Known
from ..ledger.texts import fitting

_LONGEST_ERROR = 2000
_LONGEST_NAME = 255
_LONGEST_REASON = 64
# So many attempts may begin between two looks of the ledger; a number beyond that is no count of them.
_MOST_UNSEEN_ATTEMPTS = 1000
# No retry waits for longer (the largest cap of a policy), whatever the clocks of worker and ledger say.
_LONGEST_WAIT_SECONDS = 2 * 86400.0


@dataclass(frozen=True, slots=True)
class Change:
    status: RunStatus
    attempt: int
    revision: int
    worker_id: str | None
    error: str | None
    reason: str | None
    updated_at: float
    heartbeat_at: float
    started_at: float | None
    finished_at: float | None
    failures: int
    not_before: float | None
    reopened: int


def is_possible(known: Known, snapshot: RunSnapshot, *, now: float) -> bool:
    """Whether a run of which the ledger knows this can have such a snapshot.

    Any worker may write any snapshot. One that says what only the ledger decides (that the run was reopened), or that
    would keep the run from ever ending, counts as unreadable: it is not folded in, and the sweeper replaces it.
    """
    return (
        snapshot.reopened <= known.reopened
        and max(snapshot.attempt, snapshot.attempt_floor or 0) <= known.attempt + _MOST_UNSEEN_ATTEMPTS
        and (snapshot.not_before or 0.0) <= max(known.not_before or 0.0, now + _LONGEST_WAIT_SECONDS)
    )


def tells_of_lost_attempts(known: Known, snapshot: RunSnapshot, revision: int) -> bool:
    """Whether the snapshot is the end that the ledger knows, with attempts besides that a lost store had known."""
    return (
        known.status.is_terminal
        and revision > known.revision
        and (snapshot.status, snapshot.attempt, snapshot.reopened) == (known.status, known.attempt, known.reopened)
        and bool(snapshot.earlier_attempts)
    )


def fold(known: Known, snapshot: RunSnapshot, revision: int, *, now: float) -> Change | None:
    """The change to record, or None when the snapshot is old news, impossible, or comes after the end.

    Attempts never fall and a terminal state never changes, whatever order the news arrives in: a run that was asked
    to be tried once more leaves its end in the ledger first.
    """
    if known.status.is_terminal or revision <= known.revision or snapshot.reopened < known.reopened:
        return None
    if not is_possible(known, snapshot, now=now):
        return None
    if snapshot.status is known.status is RunStatus.PENDING and snapshot.attempt <= known.attempt:
        return None  # the ledger knew it before KV did
    if known.status is RunStatus.CANCELLING and snapshot.status in (RunStatus.PENDING, RunStatus.RUNNING):
        return None  # written by somebody whom the request to cancel has not reached yet
    # A peer's worker does not count attempts: whoever runs is in the first at least.
    attempt = max(known.attempt, snapshot.attempt, 1 if snapshot.status is RunStatus.RUNNING else 0)
    # By a worker's clock, but not in the future: retention would wait for that.
    finished_at = min(snapshot.end_time or snapshot.updated_at, now) if snapshot.is_terminal else None
    return Change(
        status=snapshot.status,
        attempt=attempt,
        revision=revision,
        worker_id=fitting(snapshot.worker_id, _LONGEST_NAME),
        error=fitting(snapshot.error, _LONGEST_ERROR),
        reason=fitting(snapshot.reason, _LONGEST_REASON),
        updated_at=snapshot.updated_at,
        heartbeat_at=snapshot.heartbeat_at,
        started_at=snapshot.start_time,
        finished_at=finished_at,
        failures=snapshot.failures,
        not_before=snapshot.not_before,
        reopened=known.reopened,
    )

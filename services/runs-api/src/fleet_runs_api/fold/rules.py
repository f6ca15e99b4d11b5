"""Rules, without SQL, for how a snapshot in KV changes the ledger's record of a run."""

from typing import NamedTuple

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from ..ledger.rows import Known
from ..ledger.sql.texts import fitting

_LONGEST_ERROR = 2000
_LONGEST_NAME = 255
_LONGEST_REASON = 64
# How many attempts may begin between two snapshots that the ledger sees; a larger step is not credible.
_MOST_UNSEEN_ATTEMPTS = 1000
# No retry waits longer: the largest cap of a policy is one day, and the rest allows for clock skew.
_LONGEST_WAIT_SECONDS = 2 * 86400.0


class Change(NamedTuple):
    """The new values of a run's columns."""

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

    @property
    def known(self) -> Known:
        return Known(self.status, self.attempt, self.revision, self.failures, self.reopened, self.not_before)


def is_possible(known: Known, snapshot: RunSnapshot, *, now: float) -> bool:
    """Whether the snapshot is possible for a run, given the ledger's record of it.

    Any worker may write any snapshot. One that claims what only the ledger decides (that the run was reopened), or
    that would keep the run from ever ending, counts as unreadable: it is not folded in, and the sweeper replaces it.
    """
    return (
        snapshot.reopened <= known.reopened
        and max(snapshot.attempt, snapshot.attempt_floor or 0) <= known.attempt + _MOST_UNSEEN_ATTEMPTS
        and (snapshot.not_before or 0.0) <= max(known.not_before or 0.0, now + _LONGEST_WAIT_SECONDS)
    )


def adds_lost_attempts(known: Known, snapshot: RunSnapshot, revision: int) -> bool:
    """Whether the snapshot repeats the end that the ledger has, and adds attempts that a lost store had known."""
    return (
        known.status.is_terminal
        and revision > known.revision
        and (snapshot.status, snapshot.attempt, snapshot.reopened) == (known.status, known.attempt, known.reopened)
        and bool(snapshot.earlier_attempts)
    )


def fold(known: Known, snapshot: RunSnapshot, revision: int, *, now: float) -> Change | None:
    """The change to record, or None if the snapshot is outdated, impossible, or comes after the end.

    Attempts never decrease and a terminal state never changes, in whatever order snapshots arrive: a requeued run is
    first reopened in the ledger.
    """
    if known.status.is_terminal or revision <= known.revision or snapshot.reopened < known.reopened:
        return None
    if not is_possible(known, snapshot, now=now):
        return None
    if snapshot.status is known.status is RunStatus.PENDING and snapshot.attempt <= known.attempt:
        return None  # the ledger has this state already
    if known.status is RunStatus.CANCELLING and snapshot.status in (RunStatus.PENDING, RunStatus.RUNNING):
        return None  # written by a worker that has not seen the request to cancel yet
    # A peer's worker does not count attempts: a RUNNING run is in its first attempt at least.
    attempt = max(known.attempt, snapshot.attempt, 1 if snapshot.status is RunStatus.RUNNING else 0)
    # By the worker's clock, but not in the future, because retention would wait for that time.
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

"""How a snapshot seen in KV changes what the ledger knows of a run: a rule without any SQL."""

from dataclasses import dataclass

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from .texts import fitting

_LONGEST_ERROR = 2000
_LONGEST_NAME = 255
_LONGEST_REASON = 64


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger has."""

    status: RunStatus
    attempt: int
    revision: int
    failures: int = 0
    reopened: int = 0


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


def fold(known: Known, snapshot: RunSnapshot, revision: int) -> Change | None:
    """The change to record, or None when the snapshot is old news or comes after the end.

    Attempts never fall and a terminal state never changes, whatever order the news arrives in: only a run that
    was asked to be tried once more leaves its end, and then the ledger knows it first.
    """
    if revision <= known.revision or snapshot.reopened < known.reopened:
        return None
    if known.status.is_terminal and snapshot.reopened == known.reopened:
        return None
    if snapshot.status is known.status is RunStatus.PENDING and snapshot.attempt <= known.attempt:
        return None  # the ledger knew it before KV did
    # A peer's worker does not count attempts: whoever runs is in the first at least.
    attempt = max(known.attempt, snapshot.attempt, 1 if snapshot.status is RunStatus.RUNNING else 0)
    finished_at = (snapshot.end_time or snapshot.updated_at) if snapshot.is_terminal else None
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
        reopened=snapshot.reopened,
    )

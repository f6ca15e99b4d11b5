"""What becomes of a job: every way it can go, and what that means for queue and dead letters (appendix E)."""

from dataclasses import dataclass
from typing import assert_never

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.nats.pull import give_back_pause_seconds, nak

from .delivery import ACK, TERM

_REASONS = frozenset(DeadLetterReason)


@dataclass(frozen=True, slots=True)
class InvalidJob:
    """The message is no job, now and for ever."""

    error: str
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunMissing:
    """The run has no snapshot: it was withdrawn, or its snapshot is a moment late."""

    error: str
    given_up: bool


@dataclass(frozen=True, slots=True)
class AlreadyEnded:
    """The run has reached its end without being executed here: nothing is left to do but to see to its letter.

    Whoever ended it may have died before the letter was out. It has an id of its own: a second one is dropped.
    """

    snapshot: RunSnapshot


@dataclass(frozen=True, slots=True)
class HeldElsewhere:
    """A living holder works on the run."""

    retry_seconds: float


@dataclass(frozen=True, slots=True)
class NotYet:
    """The run's time has not come."""

    retry_seconds: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The run has ended, and its terminal snapshot is written."""

    status: RunStatus
    error: str | None = None
    reason: DeadLetterReason | None = None
    # Only of a run that ended instead of being claimed; else it is the lease's.
    snapshot: RunSnapshot | None = None


@dataclass(frozen=True, slots=True)
class RetryScheduled:
    """The flow has failed and waits for its next attempt: the runs service will queue it again."""


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The run waits again: its runner died, or this worker stops."""

    retry_seconds: float


@dataclass(frozen=True, slots=True)
class Fenced:
    """Somebody else has the run now: nothing of it is ours to answer."""


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """NATS would not take a state that has to be written before the job may go on."""

    error: str


Outcome = (
    InvalidJob
    | RunMissing
    | AlreadyEnded
    | HeldElsewhere
    | NotYet
    | Ended
    | RetryScheduled
    | HandedBack
    | Fenced
    | Unrecorded
)


@dataclass(frozen=True, slots=True)
class Disposition:
    # None: leave the delivery unanswered.
    answer: bytes | None
    dead_letter: DeadLetterReason | None = None


def dispose(
    outcome: Outcome, *, num_delivered: int, nak_delay_sec: float, publish_execution_error: bool
) -> Disposition:
    """The table of appendix E. A job that goes back for another time stays away for a while at least."""
    pause = give_back_pause_seconds(num_delivered)
    match outcome:
        case InvalidJob():
            return Disposition(TERM, DeadLetterReason.INVALID_JOB)
        case RunMissing(given_up=True):
            return Disposition(TERM, DeadLetterReason.RUN_NOT_FOUND)
        case RunMissing():
            return Disposition(nak(max(1.0, pause)))
        case Ended(status=RunStatus.FAILED, reason=reason):
            letter = reason or DeadLetterReason.EXECUTION_ERROR
            wanted = publish_execution_error or letter is not DeadLetterReason.EXECUTION_ERROR
            return Disposition(ACK, letter if wanted else None)
        case AlreadyEnded(snapshot) if snapshot.status is RunStatus.FAILED and snapshot.reason in _REASONS:
            letter = DeadLetterReason(snapshot.reason)
            wanted = publish_execution_error or letter is not DeadLetterReason.EXECUTION_ERROR
            return Disposition(ACK, letter if wanted else None)
        case AlreadyEnded() | Ended() | RetryScheduled():
            return Disposition(ACK)
        case HeldElsewhere(retry_seconds) | NotYet(retry_seconds) | HandedBack(retry_seconds):
            return Disposition(nak(max(retry_seconds, pause)))
        case Unrecorded():
            return Disposition(nak(max(nak_delay_sec, pause)))
        case Fenced():
            return Disposition(None)
        case _:
            assert_never(outcome)

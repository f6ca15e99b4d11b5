"""All outcomes of a job, with the answer and the dead letter that follow from each (appendix E)."""

import re
from dataclasses import dataclass
from typing import assert_never

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_kit.nats.pull import give_back_pause_seconds, nak

from .delivery import ACK, TERM

_REASONS = frozenset(DeadLetterReason)
_LONGEST_DECLINED_SECONDS = 1.0
# Of a job that the worker has no room for: others of the queue get through meanwhile.
_TIMES_WITHOUT_ROOM = 2.5
_WORD_BEGINS = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class InvalidJob:
    """The message is not a valid job, and a redelivery would not change that."""

    error: str
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunMissing:
    """The run has no snapshot: it was withdrawn, or its snapshot is not written yet."""

    error: str
    given_up: bool


@dataclass(frozen=True, slots=True)
class AlreadyEnded:
    """The run has ended without being executed here: only its dead letter may still be missing.

    The process that ended it may have died before it published the letter. A duplicate is dropped by the letter's id.
    """

    snapshot: RunSnapshot


@dataclass(frozen=True, slots=True)
class HeldElsewhere:
    """A living holder works on the run."""

    retry_seconds: float


@dataclass(frozen=True, slots=True)
class NotYet:
    """The run is not due yet."""

    retry_seconds: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The run has ended, and its terminal snapshot is written."""

    status: RunStatus
    error: str | None = None
    reason: DeadLetterReason | None = None
    # Set only if the run ended instead of being claimed; otherwise the lease has the snapshot.
    snapshot: RunSnapshot | None = None


@dataclass(frozen=True, slots=True)
class RetryScheduled:
    """The flow has failed and waits for its next attempt, which runs-api will dispatch."""


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The run is queued again: its runner died, or this worker stops."""

    retry_seconds: float


@dataclass(frozen=True, slots=True)
class DeclinedJob:
    """The worker does not offer the flow, and another one is to have the job."""

    # None: another worker has the delivery already.
    retry_seconds: float | None


@dataclass(frozen=True, slots=True)
class Fenced:
    """The claim is lost: this worker may neither write the run nor answer its job."""


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """A state that has to be written before the job is answered could not be written to NATS."""

    error: str


# Why there is no lease on a run.
NoClaim = InvalidJob | RunMissing | AlreadyEnded | HeldElsewhere | NotYet | Ended
Outcome = NoClaim | RetryScheduled | HandedBack | DeclinedJob | Fenced | Unrecorded


def name_of(outcome: Outcome) -> str:
    """The outcome's name in metrics and spans, e.g. handed_back."""
    return _WORD_BEGINS.sub("_", type(outcome).__name__).lower()


@dataclass(frozen=True, slots=True)
class Disposition:
    # None: leave the delivery unanswered.
    answer: bytes | None
    dead_letter: DeadLetterReason | None = None


def dispose(
    outcome: Outcome, *, num_delivered: int, nak_delay_sec: float, publish_execution_error: bool
) -> Disposition:
    """The table of appendix E. A nak has at least the backoff that `num_delivered` demands."""
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
        case DeclinedJob(float(retry_seconds)):
            backoff = _TIMES_WITHOUT_ROOM * pause if retry_seconds else min(pause, _LONGEST_DECLINED_SECONDS)
            return Disposition(nak(max(retry_seconds, backoff)))
        case Fenced() | DeclinedJob():
            return Disposition(None)
        case _:
            assert_never(outcome)

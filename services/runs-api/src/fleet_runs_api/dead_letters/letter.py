"""Rules for dead letters, without SQL: how a message is read, and which letters form a group."""

import hashlib
import logging
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from fleet_contracts.dead_letter import DeadLetter
from fleet_contracts.log_events import LetterMove
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.names import end_of_dead_letter_id
from fleet_kit.logs.events import log_dlq_transition

from ..ledger.sql.texts import fitting

logger = logging.getLogger(__name__)

# Reason of a message that is not a valid dead letter: publishers to the stream may send anything.
INVALID_LETTER = "invalid_letter"

LONGEST_ERROR = 2000
_LARGEST_COUNT = 2**31 - 1
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
# `ValueError` or `package.module.Error` at the beginning of an error, if the error names its type.
_EXCEPTION_NAME = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*", re.ASCII)


class LetterState(StrEnum):
    OPEN = "open"
    REQUEUED = "requeued"
    # Hidden but kept, so that the letter is recognized if it is delivered again.
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message of the dead letter stream."""

    data: bytes
    subject: str
    sequence: int
    stored_at: float
    # The id that the publisher gave it, if any.
    given_id: str | None


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter with every field cut to fit the ledger."""

    message_id: str
    # The end of the run that the publisher's id names, if it names one: times reopened, and attempt.
    named_end: tuple[int, int] | None
    at: float
    reason: str
    error: str | None
    # As the publisher gave it, for traces only: the run decides to which tenant the letter belongs.
    tenant_id: str | None
    run_id: str | None
    flow_name: str | None
    tag: str | None
    worker_id: str | None
    attempt: int | None
    num_delivered: int | None
    subject: str | None


class RejectedLetter:
    """A letter that is rejected: its run has not failed, or was not in the queue that the letter names."""


class Moved(NamedTuple):
    """A letter whose state has changed."""

    id: int
    run_id: str | None
    flow_name: str | None
    tag: str | None
    reason: str

    def log(self, move: LetterMove) -> None:
        log_dlq_transition(
            logger,
            move,
            letter_id=self.id,
            job_type=self.flow_name,
            reason=self.reason,
            run_id=self.run_id,
            tag=self.tag,
        )


def read_letter(arrived: Arrived, *, tag: str) -> Letter:
    """Decode a message; `tag` is the one of its subject. A malformed message becomes a letter about itself."""
    try:
        said = DeadLetter.decode(arrived.data)
    except MalformedMessage as error:
        said = DeadLetter(timestamp=arrived.stored_at, reason=INVALID_LETTER, error=str(error))
    run_id = said.run_id if said.run_id and _RUN_ID.fullmatch(said.run_id) else None
    return Letter(
        message_id=_message_id(arrived, run_id),
        named_end=end_of_dead_letter_id(arrived.given_id or "", run_id) if run_id is not None else None,
        # By the server's clock: a publisher's clock cannot be trusted.
        at=arrived.stored_at,
        reason=fitting(said.reason, 64) or INVALID_LETTER,
        error=fitting(said.error, LONGEST_ERROR),
        tenant_id=fitting(said.tenant_id, 128),
        run_id=run_id,
        flow_name=fitting(said.flow_name, 200),
        # From the subject, on which NATS lets only workers of the tag publish.
        tag=fitting(tag, 64),
        worker_id=fitting(said.worker_id, 255),
        attempt=_countable(said.attempt),
        num_delivered=_countable(said.num_delivered),
        subject=fitting(said.subject or arrived.subject, 255),
    )


def error_type_of(error: str | None, reason: str) -> str:
    """The name of the exception that an error begins with; without one, the reason."""
    name = (error or "").partition(":")[0]
    return name[:200] if _EXCEPTION_NAME.fullmatch(name) else reason


def fingerprint_of(reason: str, flow_name: str | None, error_type: str) -> str:
    """The fingerprint that all letters of one group share."""
    return _digest(reason, flow_name or "", error_type)[:32]


def _message_id(arrived: Arrived, run_id: str | None) -> str:
    """An id that is the same for every delivery of a letter, and for a letter that was published twice.

    A publisher's ids may start again after JetStream was wiped, so they only distinguish letters of one run. A
    letter without a run or without such an id is identified by its sequence and time in the stream.
    """
    if run_id is not None and arrived.given_id is not None:
        return _digest(run_id, arrived.given_id)
    return _digest("", str(arrived.sequence), repr(arrived.stored_at))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _countable(number: int | None) -> int | None:
    return number if number is not None and 0 <= number <= _LARGEST_COUNT else None

"""The history of a run: its earlier attempts, and the decisions about it with their reasons."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import TypeAdapter

from fleet_contracts.snapshot import AttemptOutcome, AttemptRecord, RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.wheel import WheelInUse

from ..ledger.sql.prepared import Inserting
from ..ledger.sql.texts import fitting, iso
from ..ledger.sql.transaction import Transaction
from ..ledger.tables import attempts as _attempts
from ..ledger.tables import decisions as _decisions


class DecisionKind(StrEnum):
    RETRY = "retry"
    GIVE_UP = "give_up"
    HAND_OVER = "hand_over"
    REDISPATCH = "redispatch"
    REQUEUE = "requeue"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class Decided:
    run_id: str
    at: float
    kind: DecisionKind
    attempt: int
    reason: str


_LONGEST_NAME = 255
_LONGEST_TEXT = 4000
_WHEELS = TypeAdapter(list[WheelInUse])
_INSERT_DECISION = Inserting(_decisions, ("run_id", "at", "kind", "attempt", "reason"))


def note_decisions(transaction: Transaction, decided: Sequence[Decided]) -> Sequence[None]:
    rows = [(d.run_id, d.at, d.kind.value, d.attempt, fitting(d.reason, _LONGEST_TEXT)) for d in decided]
    transaction.write(_INSERT_DECISION, rows)
    return [None] * len(decided)


def note_attempts(transaction: Transaction, snapshot: RunSnapshot) -> None:
    """Record the attempts in a snapshot, and the decision after each one that the ledger did not have."""
    decided = _note_records(transaction, snapshot, snapshot.earlier_attempts)
    if _has_used_up_its_retries(snapshot):
        assert snapshot.retry is not None
        reason = f"failure {snapshot.failures} of {snapshot.retry.max_attempts} allowed: {snapshot.error}"
        at = snapshot.end_time or snapshot.updated_at
        decided.append(Decided(snapshot.run_id, at, DecisionKind.GIVE_UP, snapshot.attempt, reason))
    note_decisions(transaction, decided)


def note_lost_attempts(transaction: Transaction, ended: RunSnapshot) -> None:
    """Record interrupted attempts from a snapshot that a worker wrote after the end, and nothing else of it."""
    records = [
        record
        for record in ended.earlier_attempts
        if record.outcome is AttemptOutcome.INTERRUPTED and record.attempt < ended.attempt
    ]
    note_decisions(transaction, _note_records(transaction, ended, records))


def _note_records(transaction: Transaction, snapshot: RunSnapshot, records: Sequence[AttemptRecord]) -> list[Decided]:
    decided = []
    for record in records:
        added = transaction.execute(
            transaction.insert_if_new(_attempts)
            .values(
                run_id=snapshot.run_id,
                attempt=record.attempt,
                outcome=record.outcome.value,
                worker_id=fitting(record.worker_id, _LONGEST_NAME),
                started_at=record.start_time,
                ended_at=record.end_time,
                error=fitting(record.error, _LONGEST_TEXT),
                wheels=_WHEELS.dump_json(record.wheels).decode() if record.wheels else None,
            )
            .returning(_attempts.c.attempt)
        ).first()
        if added is not None and (decision := _decision_after(snapshot, record)) is not None:
            decided.append(decision)
    return decided


def _decision_after(snapshot: RunSnapshot, record: AttemptRecord) -> Decided | None:
    match record.outcome:
        case AttemptOutcome.INTERRUPTED:
            reason = f"worker {record.worker_id} or its runner died in mid-run; another attempt may begin"
            kind = DecisionKind.HAND_OVER
        case AttemptOutcome.HANDED_BACK:
            reason = f"worker {record.worker_id} stopped and gave the run back"
            kind = DecisionKind.HAND_OVER
        case AttemptOutcome.FAILED if record is snapshot.earlier_attempts[-1] and snapshot.retry is not None:
            when = (
                f"; the next attempt begins at {iso(snapshot.not_before, timespec='milliseconds')}"
                if snapshot.not_before
                else ""
            )
            most = snapshot.retry.max_attempts
            reason = f"failure {snapshot.failures} of {most} allowed: {record.error}{when}"
            kind = DecisionKind.RETRY
        case _:
            return None
    return Decided(snapshot.run_id, record.end_time, kind, record.attempt, reason)


def _has_used_up_its_retries(snapshot: RunSnapshot) -> bool:
    return (
        snapshot.status is RunStatus.FAILED
        and snapshot.retry is not None
        and snapshot.retry.max_attempts > 1
        and not snapshot.retry.allows_another(snapshot.failures)
    )

"""SQL that sets failed runs back to PENDING, in batches for the group commit."""

import time
from dataclasses import dataclass

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from ..fold.history import Decided, DecisionKind, note_attempts, note_decisions
from ..ledger.documents import KEEP_SNAPSHOT, snapshot_of
from ..ledger.outbox import queue_again
from ..ledger.reads import locked_run
from ..ledger.sql.transaction import Transaction, in_order_of_runs


@dataclass(frozen=True, slots=True)
class Reopening:
    """A request for another attempt of a failed run, at `due_at`."""

    run_id: str
    tenant_id: str
    due_at: float
    now: float
    by: str


@dataclass(frozen=True, slots=True)
class NotReopened:
    """The run is not FAILED but in this state; None: there is no such run."""

    status: RunStatus | None


@in_order_of_runs
def reopen(transaction: Transaction, item: Reopening) -> RunSnapshot | NotReopened:
    """Set a failed run back to PENDING. Returns the snapshot to announce, or why there is none."""
    row = locked_run(transaction, item.run_id, tenant_id=item.tenant_id)
    if row is None:
        return NotReopened(None)
    before = row.known
    if before.status is not RunStatus.FAILED or row.snapshot is None:
        return NotReopened(before.status)
    not_before = item.due_at if item.due_at > item.now else None
    reopened = snapshot_of(row).reopen(now=item.now, not_before=not_before)
    snapshot = reopened.with_recorded(attempt=before.attempt, reopened=before.reopened + 1)
    note_attempts(transaction, snapshot)
    queue_again(
        transaction,
        item.run_id,
        due_at=item.due_at,
        now=item.now,
        status=RunStatus.PENDING.value,
        worker_id=None,
        started_at=None,
        finished_at=None,
        failures=0,
        not_before=not_before,
        deadline_at=None,
        reopened=before.reopened + 1,
        kv_released=0,
        updated_at=item.now,
        changed_at=time.time(),
    )
    transaction.write(KEEP_SNAPSHOT, [(snapshot.encode().decode(), item.run_id)])
    reason = f"{item.by} asked for another attempt after: {row.error or row.reason or 'no error was given'}"
    note_decisions(transaction, [Decided(item.run_id, item.now, DecisionKind.REQUEUE, before.attempt, reason)])
    transaction.counts.move(row.kind, before.status, snapshot.status)
    return snapshot

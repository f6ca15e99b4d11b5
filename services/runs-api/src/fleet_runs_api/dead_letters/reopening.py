"""SQL that sets failed runs back to PENDING, in batches for the group commit."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from ..fold.history import Decided, DecisionKind, note_attempts, note_decisions
from ..ledger.counting import Kind, count
from ..ledger.documents import KEEP_SNAPSHOT, snapshot_of
from ..ledger.outbox import queue_again
from ..ledger.tables import documents as _documents
from ..ledger.tables import runs as _runs


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


def reopen(connection: Connection, wanted: Sequence[Reopening]) -> Sequence[RunSnapshot | NotReopened]:
    """Set failed runs back to PENDING. Returns the snapshot to announce for each run, or why there is none."""
    results: list[RunSnapshot | NotReopened] = [NotReopened(None)] * len(wanted)
    # In a fixed order, so that two processes do not deadlock.
    for place in sorted(range(len(wanted)), key=lambda place: wanted[place].run_id):
        results[place] = _reopen(connection, wanted[place])
    return results


def _reopen(connection: Connection, item: Reopening) -> RunSnapshot | NotReopened:
    row = connection.execute(
        select(_runs).where(_runs.c.run_id == item.run_id, _runs.c.tenant_id == item.tenant_id).with_for_update()
    ).first()
    if row is None:
        return NotReopened(None)
    # In a separate statement: a join that waited for the lock would return the new run with the old document.
    document = connection.execute(select(_documents).where(_documents.c.run_id == item.run_id)).one()
    if row.status != RunStatus.FAILED or document.snapshot is None:
        return NotReopened(RunStatus(row.status))
    not_before = item.due_at if item.due_at > item.now else None
    snapshot = snapshot_of(document).reopen(now=item.now, not_before=not_before)
    # The ledger counts attempts also for peers' workers, which do not.
    snapshot = snapshot.model_copy(update={"attempt": row.attempt, "reopened": row.reopened + 1})
    note_attempts(connection, snapshot)
    queue_again(
        connection,
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
        reopened=row.reopened + 1,
        kv_released=0,
        updated_at=item.now,
        changed_at=time.time(),
    )
    KEEP_SNAPSHOT.execute(connection, [(snapshot.encode().decode(), item.run_id)])
    reason = f"{item.by} asked for another attempt after: {row.error or row.reason or 'no error was told'}"
    note_decisions(connection, [Decided(item.run_id, item.now, DecisionKind.REQUEUE, row.attempt, reason)])
    kind = Kind(row.tenant_id, row.flow_name, row.tag)
    count(connection, [(kind, RunStatus.FAILED, -1), (kind, RunStatus.PENDING, 1)])
    return snapshot

"""SQL that records requests to cancel runs, in batches for the group commit."""

import time
from dataclasses import dataclass

from sqlalchemy import insert, update

from fleet_contracts.snapshot import RunSnapshot

from ..ledger import reads
from ..ledger.documents import KEEP_SNAPSHOT, snapshot_of
from ..ledger.outbox import CANCEL
from ..ledger.sql.transaction import Transaction, in_order_of_runs
from ..ledger.tables import outbox as _outbox
from ..ledger.tables import runs as _runs


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """A request to cancel a run. The relay writes it to KV at `carry_at`, unless that was done before."""

    run_id: str
    tenant_id: str
    by: str
    reason: str | None
    now: float
    carry_at: float


@in_order_of_runs
def request_cancel(transaction: Transaction, item: CancelRequest) -> RunSnapshot | None:
    """Record a request to cancel. Returns the run as the ledger now has it, None if there is no such run.

    A run that has ended does not change, and of two requests the first one counts.
    """
    row = reads.locked_run(transaction, item.run_id, tenant_id=item.tenant_id)
    if row is None:
        return None
    snapshot = snapshot_of(row)
    if (asked := snapshot.request_cancel(by=item.by, now=item.now, reason=item.reason)) is snapshot:
        return snapshot
    changes = {"status": asked.status.value, "updated_at": item.now, "changed_at": time.time()}
    transaction.execute(update(_runs).where(_runs.c.run_id == item.run_id).values(changes))
    transaction.write(KEEP_SNAPSHOT, [(asked.encode().decode(), item.run_id)])
    row_of_outbox = {"kind": CANCEL, "run_id": item.run_id, "dispatch": row.dispatch, "due_at": item.carry_at}
    transaction.execute(insert(_outbox).values(row_of_outbox))
    transaction.counts.move(row.kind, row.known.status, asked.status)
    return asked

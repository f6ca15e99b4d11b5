"""SQL that records requests to cancel runs, in batches for the group commit."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus

from ..ledger import reads
from ..ledger.counting import Kind, count
from ..ledger.documents import KEEP_SNAPSHOT, snapshot_of
from ..ledger.outbox import CANCEL
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


def request_cancel(connection: Connection, wanted: Sequence[CancelRequest]) -> Sequence[RunSnapshot | None]:
    """Record requests to cancel. Returns each run as the ledger now has it, None if there is no such run.

    A run that has ended does not change, and of two requests the first one counts.
    """
    results: list[RunSnapshot | None] = [None] * len(wanted)
    for place in sorted(range(len(wanted)), key=lambda place: wanted[place].run_id):
        results[place] = _request_cancel(connection, wanted[place])
    return results


def _request_cancel(connection: Connection, item: CancelRequest) -> RunSnapshot | None:
    own = (_runs.c.run_id == item.run_id, _runs.c.tenant_id == item.tenant_id)
    if connection.execute(select(_runs.c.run_id).where(*own).with_for_update()).first() is None:
        return None
    row = connection.execute(reads.run_with_documents(item.run_id)).one()
    snapshot = snapshot_of(row)
    if (asked := snapshot.request_cancel(by=item.by, now=item.now, reason=item.reason)) is snapshot:
        return snapshot
    changes = {"status": asked.status.value, "updated_at": item.now, "changed_at": time.time()}
    connection.execute(update(_runs).where(_runs.c.run_id == item.run_id).values(changes))
    KEEP_SNAPSHOT.execute(connection, [(asked.encode().decode(), item.run_id)])
    row_of_outbox = {"kind": CANCEL, "run_id": item.run_id, "dispatch": row.dispatch, "due_at": item.carry_at}
    connection.execute(insert(_outbox).values(row_of_outbox))
    kind = Kind(row.tenant_id, row.flow_name, row.tag)
    count(connection, [(kind, RunStatus(row.status), -1), (kind, asked.status, 1)])
    return asked

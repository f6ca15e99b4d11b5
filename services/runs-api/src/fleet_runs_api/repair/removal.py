"""SQL of retention: deletes runs that ended long ago from the ledger, in batches for the group commit."""

from collections.abc import Sequence

from sqlalchemy import Connection, delete, update

from fleet_contracts.status import RunStatus

from ..ledger.counting import Kind, count
from ..ledger.tables import attempts as _attempts
from ..ledger.tables import decisions as _decisions
from ..ledger.tables import documents as _documents
from ..ledger.tables import idempotency_keys as _keys
from ..ledger.tables import runs as _runs


def mark_released(connection: Connection, groups: Sequence[Sequence[str]]) -> Sequence[None]:
    """Record that the snapshots of these ended runs were removed from KV."""
    run_ids = [run_id for group in groups for run_id in group]
    ended = _runs.c.finished_at.is_not(None)
    connection.execute(update(_runs).where(_runs.c.run_id.in_(run_ids), ended).values(kv_released=1))
    return [None] * len(groups)


def purge(connection: Connection, groups: Sequence[Sequence[str]]) -> Sequence[None]:
    """Delete these ended runs with their documents, attempts and decisions."""
    run_ids = sorted({run_id for group in groups for run_id in group})
    gone = connection.execute(
        delete(_runs)
        .where(_runs.c.run_id.in_(run_ids), _runs.c.finished_at.is_not(None))
        .returning(_runs.c.run_id, _runs.c.tenant_id, _runs.c.flow_name, _runs.c.tag, _runs.c.status)
    ).all()
    for table in (_documents, _attempts, _decisions):
        connection.execute(delete(table).where(table.c.run_id.in_([row.run_id for row in gone])))
    count(connection, ((Kind(row.tenant_id, row.flow_name, row.tag), RunStatus(row.status), -1) for row in gone))
    return [None] * len(groups)


def forget_old_keys(connection: Connection, moments: Sequence[float]) -> Sequence[None]:
    """Delete idempotency keys that are older than this, so that they can be used again."""
    connection.execute(delete(_keys).where(_keys.c.created_at < max(moments)))
    return [None] * len(moments)

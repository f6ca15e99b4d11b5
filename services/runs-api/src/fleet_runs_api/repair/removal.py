"""SQL of retention: deletes runs that ended long ago from the ledger, in batches for the group commit."""

from collections.abc import Sequence

from sqlalchemy import delete, update

from ..ledger.rows import RECORD_COLUMNS, run_record
from ..ledger.sql.transaction import Transaction, one_by_one
from ..ledger.tables import attempts as _attempts
from ..ledger.tables import decisions as _decisions
from ..ledger.tables import documents as _documents
from ..ledger.tables import idempotency_keys as _keys
from ..ledger.tables import runs as _runs


@one_by_one
def mark_released(transaction: Transaction, run_ids: Sequence[str]) -> None:
    """Record that the snapshots of these ended runs were removed from KV."""
    ended = _runs.c.finished_at.is_not(None)
    transaction.execute(update(_runs).where(_runs.c.run_id.in_(run_ids), ended).values(kv_released=1))


@one_by_one
def purge(transaction: Transaction, run_ids: Sequence[str]) -> None:
    """Delete these ended runs with their documents, attempts and decisions."""
    gone = transaction.rows(
        delete(_runs).where(_runs.c.run_id.in_(run_ids), _runs.c.finished_at.is_not(None)).returning(*RECORD_COLUMNS),
        run_record,
    )
    for table in (_documents, _attempts, _decisions):
        transaction.execute(delete(table).where(table.c.run_id.in_([run.run_id for run in gone])))
    for run in gone:
        transaction.counts.add(run.kind, run.known.status, -1)


@one_by_one
def forget_old_keys(transaction: Transaction, before: float) -> None:
    """Delete idempotency keys that are older than this, so that they can be used again."""
    transaction.execute(delete(_keys).where(_keys.c.created_at < before))

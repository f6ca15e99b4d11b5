"""Counts the open letters of each kind, in the transaction that changes the letters."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Executable, Transaction, case, delete, update
from sqlalchemy.dialects import postgresql, sqlite

from ..ledger.tables import dead_letter_groups as _groups


class GroupKey(NamedTuple):
    tenant_id: str
    fingerprint: str


@dataclass(slots=True)
class _Change:
    """The changes of one transaction to one group."""

    entered: int = 0
    left: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    reason: str = ""
    flow_name: str | None = None
    error_type: str = ""
    error: str | None = None


# The changes of each open transaction; those of one that is rolled back are dropped with it.
_changed: WeakKeyDictionary[Transaction, dict[GroupKey, _Change]] = WeakKeyDictionary()


def letters_entered(connection: Connection, rows: Iterable[dict[str, Any]]) -> None:
    changes = _changes_of(connection)
    for row in rows:
        change = changes.setdefault(GroupKey(row["tenant_id"], row["fingerprint"]), _Change())
        at: float = row["at"]
        change.first_at = min(change.first_at, at) if change.entered else at
        if not change.entered or at >= change.last_at:
            change.last_at = at
            change.error = row["error"]
        change.reason, change.flow_name, change.error_type = row["reason"], row["flow_name"], row["error_type"]
        change.entered += 1


def letters_left(connection: Connection, keys: Iterable[GroupKey]) -> None:
    changes = _changes_of(connection)
    for key in keys:
        changes.setdefault(key, _Change()).left += 1


def settle_groups(connection: Connection) -> None:
    """Write the changes that the batches of this transaction have made; call it last, as with the counters of runs.

    Every process writes these rows. Written last and in a fixed order they are locked for the shortest time, and
    two processes cannot deadlock.
    """
    for key, change in sorted(_changed.pop(_transaction_of(connection), {}).items()):
        if change.entered:
            connection.execute(_adding(connection, key, change))
        if change.left:
            of_key = (_groups.c.tenant_id == key.tenant_id, _groups.c.fingerprint == key.fingerprint)
            connection.execute(update(_groups).where(*of_key).values(total=_groups.c.total - change.left))
            connection.execute(delete(_groups).where(*of_key, _groups.c.total <= 0))


def _changes_of(connection: Connection) -> dict[GroupKey, _Change]:
    return _changed.setdefault(_transaction_of(connection), {})


def _transaction_of(connection: Connection) -> Transaction:
    transaction = connection.get_transaction()
    assert transaction is not None
    return transaction


def _adding(connection: Connection, key: GroupKey, change: _Change) -> Executable:
    dialect_insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = dialect_insert(_groups).values(
        tenant_id=key.tenant_id,
        fingerprint=key.fingerprint,
        reason=change.reason,
        flow_name=change.flow_name,
        error_type=change.error_type,
        error=change.error,
        total=change.entered,
        first_at=change.first_at,
        last_at=change.last_at,
    )
    new = statement.excluded
    is_newest = new.last_at >= _groups.c.last_at
    return statement.on_conflict_do_update(
        index_elements=["tenant_id", "fingerprint"],
        set_={
            "total": _groups.c.total + new.total,
            "first_at": case((new.first_at < _groups.c.first_at, new.first_at), else_=_groups.c.first_at),
            "last_at": case((is_newest, new.last_at), else_=_groups.c.last_at),
            "error": case((is_newest, new.error), else_=_groups.c.error),
        },
    )

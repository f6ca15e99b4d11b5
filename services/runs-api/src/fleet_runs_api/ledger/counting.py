"""The counters of runs: collected during a transaction and written once before it commits."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Transaction

from fleet_contracts.status import RunStatus

from .prepared import Inserting
from .tables import counts as _counts
from .tables import flow_counts as _flow_counts


class Kind(NamedTuple):
    """The fields by which runs are counted, besides their status."""

    tenant_id: str
    flow_name: str
    tag: str


# The counts of each open transaction; those of one that is rolled back are dropped with it.
_counted: WeakKeyDictionary[Transaction, Counter[tuple[Kind, str]]] = WeakKeyDictionary()


def count(connection: Connection, changes: Iterable[tuple[Kind, RunStatus, int]]) -> None:
    transaction = connection.get_transaction()
    assert transaction is not None
    totals = _counted.setdefault(transaction, Counter())
    for kind, status, change in changes:
        totals[kind, status.value] += change


def settle_counts(connection: Connection) -> None:
    """Write the counts that the batches of this transaction have collected; call it last, before the commit.

    Every process writes these rows. Written last and in a fixed order they are locked for the shortest time, and
    two processes cannot deadlock.
    """
    transaction = connection.get_transaction()
    assert transaction is not None
    by_kind = _counted.pop(transaction, Counter())
    by_tenant: Counter[tuple[str, str]] = Counter()
    for (kind, status), change in by_kind.items():
        by_tenant[kind.tenant_id, status] += change
    _ADD.execute(connection, [(*key, n) for key, n in sorted(by_tenant.items()) if n])
    _ADD_BY_FLOW.execute(connection, [(*kind, status, n) for (kind, status), n in sorted(by_kind.items()) if n])


_ADD = Inserting(_counts, ("tenant_id", "status", "total"), adding="total")
_ADD_BY_FLOW = Inserting(_flow_counts, ("tenant_id", "flow_name", "tag", "status", "total"), adding="total")

"""The counters of runs: collected during a transaction and written once before it commits."""

from collections import Counter

from sqlalchemy import Connection

from fleet_contracts.status import RunStatus

from .prepared import Inserting
from .rows import Kind
from .tables import counts as _counts
from .tables import flow_counts as _flow_counts

_ADD = Inserting(_counts, ("tenant_id", "status", "total"), adding="total")
_ADD_BY_FLOW = Inserting(_flow_counts, ("tenant_id", "flow_name", "tag", "status", "total"), adding="total")


class RunCounts:
    """How one transaction changes the numbers of runs."""

    def __init__(self) -> None:
        self._changes: Counter[tuple[Kind, str]] = Counter()

    def add(self, kind: Kind, status: RunStatus, number: int = 1) -> None:
        self._changes[kind, status.value] += number

    def move(self, kind: Kind, before: RunStatus, after: RunStatus) -> None:
        self.add(kind, before, -1)
        self.add(kind, after)

    def write(self, connection: Connection) -> None:
        by_tenant: Counter[tuple[str, str]] = Counter()
        for (kind, status), number in self._changes.items():
            by_tenant[kind.tenant_id, status] += number
        _ADD.execute(connection, [(*key, n) for key, n in sorted(by_tenant.items()) if n])
        by_flow = sorted(self._changes.items())
        _ADD_BY_FLOW.execute(connection, [(*kind, status, n) for (kind, status), n in by_flow if n])

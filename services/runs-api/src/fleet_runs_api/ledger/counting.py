"""The counters of runs: collected during a transaction and written once before it commits."""

from collections import Counter
from typing import Any

from fleet_contracts.status import RunStatus

from .rows import Kind
from .sql.prepared import Inserting
from .tables import counts as _counts
from .tables import flow_counts as _flow_counts

ADD = Inserting(_counts, ("tenant_id", "status", "total"), adding="total")
ADD_BY_FLOW = Inserting(_flow_counts, ("tenant_id", "flow_name", "tag", "status", "total"), adding="total")


class RunCounts:
    """How one transaction changes the numbers of runs."""

    def __init__(self) -> None:
        self._changes: Counter[tuple[Kind, str]] = Counter()

    def add(self, kind: Kind, status: RunStatus, number: int = 1) -> None:
        self._changes[kind, status.value] += number

    def move(self, kind: Kind, before: RunStatus, after: RunStatus) -> None:
        self.add(kind, before, -1)
        self.add(kind, after)

    def by_tenant(self) -> list[tuple[Any, ...]]:
        """The rows for ADD."""
        totals: Counter[tuple[str, str]] = Counter()
        for (kind, status), number in self._changes.items():
            totals[kind.tenant_id, status] += number
        return [(*key, number) for key, number in sorted(totals.items()) if number]

    def by_flow(self) -> list[tuple[Any, ...]]:
        """The rows for ADD_BY_FLOW."""
        return [(*kind, status, number) for (kind, status), number in sorted(self._changes.items()) if number]

"""Selects and orders the workers that a request lists, each with its effective state."""

from dataclasses import dataclass
from enum import StrEnum

from fleet_contracts.status import ACTIVE_WORKER_STATES, WorkerState
from fleet_contracts.worker_record import WorkerRecord


class WorkerScope(StrEnum):
    ACTIVE = "active"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Selection:
    scope: WorkerScope = WorkerScope.ACTIVE
    state: WorkerState | None = None
    include_hidden: bool = False
    limit: int = 100

    def admits(self, record: WorkerRecord, state: WorkerState) -> bool:
        if record.hidden and not self.include_hidden:
            return False
        if self.state is not None and state is not self.state:
            return False
        return self.scope is WorkerScope.ALL or state in ACTIVE_WORKER_STATES


def select_workers(
    records: list[WorkerRecord], selection: Selection, *, now: float, disconnect_timeout_sec: float
) -> list[tuple[WorkerRecord, WorkerState]]:
    """The selected records, each with its effective state, the most recently seen first."""
    judged = (
        (record, record.effective_state(now=now, disconnect_timeout_sec=disconnect_timeout_sec)) for record in records
    )
    admitted = [(record, state) for record, state in judged if selection.admits(record, state)]
    admitted.sort(key=lambda item: (-item[0].last_seen_at, item[0].worker_id))
    return admitted[: selection.limit]

"""Selects and orders the workers that a request lists, each with its effective state."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from fleet_contracts.status import ACTIVE_WORKER_STATES, WorkerState
from fleet_contracts.worker_record import WorkerRecord


class WorkerScope(StrEnum):
    ACTIVE = "active"
    ALL = "all"


def _parse_flag(value: Any) -> Any:
    words = {"true": True, "1": True, "false": False, "0": False}
    if isinstance(value, str):
        if (flag := words.get(value.lower())) is None:
            raise PydanticCustomError("flag", "Input should be 'true' or 'false'")
        return flag
    return value


Flag = Annotated[bool, BeforeValidator(_parse_flag)]


class Selection(BaseModel):
    """The query of a list of workers."""

    scope: WorkerScope = Field(WorkerScope.ACTIVE, description="active: RUNNING and IDLE; also when `state` is given")
    state: WorkerState | None = None
    include_hidden: Flag = False
    limit: int = Field(100, ge=1, le=500)

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

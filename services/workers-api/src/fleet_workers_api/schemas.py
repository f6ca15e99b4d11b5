"""What workers-api takes and gives over HTTP (appendix D)."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord

from .listing import Selection, WorkerScope


def _parse_flag(value: Any) -> Any:
    words = {"true": True, "1": True, "false": False, "0": False}
    if isinstance(value, str):
        if (flag := words.get(value.lower())) is None:
            raise PydanticCustomError("flag", "Input should be 'true' or 'false'")
        return flag
    return value


class WorkersQuery(BaseModel):
    scope: WorkerScope | None = None
    state: WorkerState | None = None
    include_hidden: Annotated[bool, BeforeValidator(_parse_flag)] = False
    limit: int = Field(100, ge=1, le=500)

    def selection(self) -> Selection:
        return Selection(self.scope, self.state, self.include_hidden, self.limit)


class Worker(BaseModel):
    """One worker as it is now: `state` is the effective state."""

    worker_id: str
    instance_id: str
    state: WorkerState
    hidden: bool
    last_seen_at: float
    last_heartbeat_at: float
    tags: list[str]
    slots: int
    current_run_id: str | None
    current_run_ids: list[str]
    last_run_id: str | None
    last_run_status: str | None
    last_run_started_at: float | None
    last_run_finished_at: float | None
    stopped_at: float | None
    stop_reason: str | None
    wheel_sync: dict[str, Any]

    @classmethod
    def of(cls, record: WorkerRecord) -> Self:
        return cls.model_validate(record.model_dump())

"""Response bodies about runs."""

from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, field_validator

from fleet_contracts.snapshot import AttemptOutcome
from fleet_contracts.status import RunStatus
from fleet_contracts.wheel import WheelInUse

from ..ledger.rows import DecisionView

Include = Literal["records", "full", "all"]


@dataclass(slots=True)
class RunSummary:
    run_id: str
    flow_name: str
    tag: str
    tags: list[str]
    status: RunStatus
    attempt: int
    worker_id: str | None
    error: str | None
    reason: str | None
    submitted_at: float
    updated_at: float
    heartbeat_at: float
    start_time: float | None
    end_time: float | None
    workflow_yaml_sha256: str | None
    failures: int
    not_before: float | None
    deadline_at: float | None
    rerun_of: str | None
    # Of a run that has not begun: why, in a word and in a sentence.
    waiting_reason: str | None
    waiting_detail: str | None


class RunInFull(BaseModel):
    """A run as its snapshot has it; these fields are always there, the others are those of the wire contract."""

    model_config = ConfigDict(extra="allow")

    run_id: str
    flow_name: str
    status: RunStatus
    params: dict[str, Any]
    tasks: dict[str, str]
    heartbeat_at: float
    updated_at: float


class RunPage(BaseModel):
    """A page of a walk or of a difference."""

    items: list[RunSummary | RunInFull]
    # The cursor of the next page; null: this is the last one.
    next_cursor: str | None
    # How many runs match the filter; null if there are no counters for it.
    total: int | None
    # Of a difference: the `updated_after` of the next one.
    updated_until: float | None


class RunAmongOthers(BaseModel):
    """A run in a list of results or in a stream about many runs. Fields with a default may be missing."""

    run_id: str
    # null: there is no such run; then only `ended` is there besides.
    status: RunStatus | None
    ended: bool
    flow_name: str = ""
    tag: str = ""
    attempt: int = 0
    worker_id: str | None = None
    submitted_at: float = 0
    not_before: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    updated_at: float = 0
    # Its first 500 characters; all of it with a result.
    error: str | None = None
    reason: str | None = None
    # Only of a run that has ended, where results are asked for.
    result: Any = None
    outputs: dict[str, Any] = {}
    # Whether the result or an output was too large for the snapshot.
    truncated: bool = False
    # Whether result and outputs are left out, because they are more than 256 KiB.
    too_large: bool = False


class RunResults(BaseModel):
    results: list[RunAmongOthers]
    # Where the next request begins among these run ids; null: this is all.
    next: int | None


class AttemptView(BaseModel):
    attempt: int
    # None: it is under way.
    outcome: AttemptOutcome | None
    worker_id: str | None
    started_at: float | None
    ended_at: float | None
    error: str | None
    # The synced wheels that it could import from.
    wheels: list[WheelInUse] = []

    @field_validator("wheels", mode="before")
    @classmethod
    def _read_column(cls, value: Any) -> Any:
        """Decode the ledger's column, which is JSON or NULL."""
        return orjson.loads(value) if isinstance(value, str) else value or []


class Attempts(BaseModel):
    run_id: str
    status: RunStatus
    max_attempts: int
    failures: int
    attempts: list[AttemptView]
    decisions: list[DecisionView]

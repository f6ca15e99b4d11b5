"""What comes in and goes out over HTTP."""

import math
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from fleet_contracts.names import LINE_PATTERN, Tag
from fleet_contracts.retry import RetryPolicy
from fleet_contracts.snapshot import AttemptOutcome
from fleet_contracts.status import RunStatus
from fleet_contracts.wheel import WheelInUse
from fleet_kit.bodies import Body

Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=LINE_PATTERN)]
LONGEST_LABEL = 64
Label = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_LABEL, pattern=LINE_PATTERN)]

Include = Literal["records", "full", "all"]


Moment = Annotated[float, Field(ge=0, le=32503680000, allow_inf_nan=False, description="unix seconds")]
Span = Annotated[float, Field(ge=0, le=31622400, allow_inf_nan=False, description="seconds")]


def _refuse_infinity(params: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity, but 1e999 is read as one: it would reach the flow as null."""
    values: list[Any] = [params]
    while values:
        match values.pop():
            case dict() as mapping:
                values += mapping.values()
            case list() as items:
                values += items
            case float() as number if not math.isfinite(number):
                raise ValueError("a number is too large for a double; send it as text")
    return params


class Retry(RetryPolicy, Body):
    """How often and after how long a failed flow is tried again."""


class SubmitRun(Body):
    """A run to submit. `tag` routes it to the workers of that tag; `tags` only describe it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"flow_name": "hello", "params": {"name": "Ada"}}]})

    flow_name: Name
    params: Annotated[dict[str, Any], AfterValidator(_refuse_infinity)] = {}
    tag: Tag | None = None
    tags: list[Label] | None = Field(None, max_length=50)
    retry: Retry | None = None
    # The run begins at this moment or later; and so much later than now.
    not_before: Moment | None = None
    delay_sec: Span | None = None
    # The run has ended by this moment, or it fails; and so much later than it may begin.
    deadline_at: Moment | None = None
    timeout_sec: Annotated[Span, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _say_each_time_once(self) -> Self:
        for moment, span in (("not_before", "delay_sec"), ("deadline_at", "timeout_sec")):
            if getattr(self, moment) is not None and getattr(self, span) is not None:
                raise ValueError(f"give {moment} or {span}, not both")
        return self


class SubmitBatch(Body):
    """Runs to accept together, all or none."""

    runs: list[SubmitRun] = Field(min_length=1, max_length=1000)


class CancelRun(BaseModel):
    """What may be said with a cancel; the body may be left out."""

    # Room for what a later version may say.
    model_config = ConfigDict(extra="ignore")

    reason: (
        Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$")] | None
    ) = None


class Submitted(BaseModel):
    run_id: str
    status: RunStatus


class SubmittedBatch(BaseModel):
    runs: list[Submitted]


class RunSummary(BaseModel):
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
    start_time: float | None = Field(validation_alias="started_at")
    end_time: float | None = Field(validation_alias="finished_at")
    workflow_yaml_sha256: str | None
    failures: int
    not_before: float | None
    deadline_at: float | None
    rerun_of: str | None
    # Of a run that has not begun: why, in a word and in a sentence.
    waiting_reason: str | None
    waiting_detail: str | None


class RunInFull(BaseModel):
    """A run as its snapshot tells it; these fields are always there, the others are those of the wire contract."""

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
    # Ask for the next page with it; null: this was the last one.
    next_cursor: str | None
    # How many runs fit the filter; null where nobody counts them.
    total: int | None
    # Of a difference: ask for the next one with `updated_after` set to it.
    updated_until: float | None


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
        """The ledger has them as JSON, or not at all."""
        return orjson.loads(value) if isinstance(value, str) else value or []


class DecisionView(BaseModel):
    at: float
    kind: str
    attempt: int
    reason: str


class Attempts(BaseModel):
    run_id: str
    status: RunStatus
    max_attempts: int
    failures: int
    attempts: list[AttemptView]
    decisions: list[DecisionView]

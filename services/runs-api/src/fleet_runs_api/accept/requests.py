"""Bodies of requests that submit or cancel runs, and of their answers."""

import math
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    model_validator,
)

from fleet_contracts.names import LINE_PATTERN, Tag
from fleet_contracts.retry import RetryPolicy
from fleet_contracts.status import RunStatus
from fleet_kit.http.bodies import Body

Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=LINE_PATTERN)]
LONGEST_LABEL = 64
Label = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_LABEL, pattern=LINE_PATTERN)]


Moment = Annotated[float, Field(ge=0, le=32503680000, allow_inf_nan=False, description="unix seconds")]
# 366 days.
LONGEST_SPAN_SECONDS = 31622400
Span = Annotated[float, Field(ge=0, le=LONGEST_SPAN_SECONDS, allow_inf_nan=False, description="seconds")]


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

    flow_name: Name = Field(description="which flow; no control characters")
    params: Annotated[dict[str, Any], AfterValidator(_refuse_infinity)] = Field({}, description="passed to the flow")
    tag: Tag | None = Field(
        None, description="which workers may take the run; if not given, the flow's, else the default tag"
    )
    tags: list[Label] | None = Field(
        None, max_length=50, description="labels that only describe; `[tag]` if not given"
    )
    retry: Retry | None = Field(
        None,
        description="how a failed flow is tried again; if not given, the flow's rule, else the tag's in "
        "`PYOCO_RETRY_DEFAULTS`",
    )
    not_before: Moment | None = Field(None, description="unix seconds: the run does not begin before")
    delay_sec: Span | None = Field(None, description="the same in seconds from now; give one of the two")
    deadline_at: Moment | None = Field(
        None, description="unix seconds: a run that has not ended by then is FAILED, `deadline_exceeded`"
    )
    timeout_sec: Annotated[Span, Field(gt=0)] | None = Field(
        None,
        description="the same in seconds from when the run may begin; give one of the two, else it is the flow's",
    )
    check_params: StrictBool = Field(
        True, description="false: accept params although they do not fit the schema of the flow"
    )

    @model_validator(mode="after")
    def _refuse_double_times(self) -> Self:
        for moment, span in (("not_before", "delay_sec"), ("deadline_at", "timeout_sec")):
            if getattr(self, moment) is not None and getattr(self, span) is not None:
                raise ValueError(f"give {moment} or {span}, not both")
        return self


class SubmitBatch(Body):
    """Runs to accept together, all or none."""

    runs: list[SubmitRun] = Field(min_length=1, max_length=1000)


class CancelRun(BaseModel):
    """What may be said with a cancel; the body may be left out."""

    # Later versions may add fields.
    model_config = ConfigDict(extra="ignore")

    reason: (
        Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$")] | None
    ) = Field(None, description="kept with the run as `cancel_reason`")


class Submitted(BaseModel):
    run_id: str
    status: RunStatus


class SubmittedBatch(BaseModel):
    runs: list[Submitted]

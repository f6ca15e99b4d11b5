"""What comes in and goes out over HTTP."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from fleet_contracts.names import Tag
from fleet_contracts.status import RunStatus

# No control characters: they would break logs, and PostgreSQL stores no NUL.
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Label = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")]

Include = Literal["records", "full", "all"]


class SubmitRun(BaseModel):
    """A run to submit. `tag` routes it to the workers of that tag; `tags` only describe it."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"flow_name": "hello", "params": {"name": "Ada"}}]},
    )

    flow_name: Name
    params: dict[str, Any] = {}
    tag: Tag | None = None
    tags: list[Label] | None = Field(None, max_length=50)


class CancelRun(BaseModel):
    """What may be said with a cancel; the body may be left out."""

    # Room for what a later version may say.
    model_config = ConfigDict(extra="ignore")

    reason: Annotated[str, StringConstraints(max_length=1000)] | None = None


class Submitted(BaseModel):
    run_id: str
    status: RunStatus


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

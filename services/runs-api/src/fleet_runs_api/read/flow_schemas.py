"""Response bodies about flows."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from fleet_contracts.catalogue import FlowDefaults, FlowGraph, FlowSource

Difference = Literal["description", "params_schema", "graph", "defaults", "version"]


class FlowSummary(BaseModel):
    """A flow that live workers offer, as the one says it that loaded its flows last."""

    name: str
    description: str | None
    tags: list[str] = Field(description="of the workers that offer it")
    workers: int
    versions: list[str] = Field(description="of the wheels that it comes from")
    differs: list[Difference] = Field(description="in what the workers disagree")


class FlowOfferView(BaseModel):
    """The flow, as one worker offers it."""

    worker_id: str
    tags: list[str]
    loaded_at: float
    source: FlowSource
    differs: list[Difference] = Field(description="what is different from the flow as it is shown")


class FlowDetail(FlowSummary):
    params_schema: dict[str, Any] | None = Field(description="JSON Schema of the params; null: not known")
    graph: FlowGraph | None
    defaults: FlowDefaults
    offers: list[FlowOfferView]


class BrokenView(BaseModel):
    """A source that workers could not load."""

    place: str
    exc_type: str
    message: str
    line: int | None
    workers: list[str]


class ReloadFailure(BaseModel):
    """An edit that could not be loaded: the version before it stays in force."""

    error: str
    workers: list[str]


class FlowList(BaseModel):
    flows: list[FlowSummary]
    broken: list[BrokenView]
    reload_failures: list[ReloadFailure]
    open_tags: list[str] = Field(description="of workers with a resolver, which may know other flows as well")
    truncated: list[str] = Field(description="workers whose catalogue was too large and has been cut")


class FlowsChanged(FlowList):
    """The list, at first and whenever something in it has changed; it has an id."""

    ts: float


class FlowsUnchanged(BaseModel):
    """Nothing has changed for some seconds."""

    ts: float

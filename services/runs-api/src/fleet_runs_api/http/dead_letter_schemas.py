"""Request and response bodies of the dead letter routes."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from fleet_contracts.status import RunStatus
from fleet_kit.http.bodies import Body
from fleet_kit.http.query_parameters import Moment

from ..accept.requests import Name
from ..dead_letters.reads import GroupView, LetterView

Fingerprint = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Cursor = Annotated[str, StringConstraints(max_length=500)]
StateFilter = Literal["open", "requeued", "all"]

MOST_AT_ONCE = 1000


class Criteria(Body):
    """Which letters are meant. An unknown criterion is refused: ignoring it would choose too many."""

    reason: Name | None = Field(None, description="the exact value, as in `flow`, `tag` and `run_id`")
    flow: Name | None = None
    tag: Name | None = None
    run_id: Name | None = None
    fingerprint: Fingerprint | None = Field(None, description="of a group")
    since: Moment | None = Field(None, description="letters of this moment or later")
    until: Moment | None = Field(None, description="letters before this moment")


class LetterQuery(Criteria):
    state: StateFilter = "open"
    limit: int = Field(50, ge=1, le=200)
    cursor: Cursor | None = Field(None, description="`next_cursor` of the page before, with the same filters")


class DeletionQuery(Criteria):
    state: StateFilter = "open"
    all: bool = Field(False, description="every letter is meant: needed if there is no criterion")
    limit: int = Field(MOST_AT_ONCE, ge=1, le=MOST_AT_ONCE)
    cursor: Cursor | None = Field(None, description="`next_cursor` of the answer before, with the same criteria")

    @model_validator(mode="after")
    def _be_explicit(self) -> Self:
        _require_criteria(self, self.all)
        return self


class RequeueLetters(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"filter": {"reason": "execution_error"}, "rate_per_sec": 10}]},
    )

    filter: Criteria = Criteria()
    all: bool = Field(False, description="every open letter is meant: needed if there is no criterion")
    rate_per_sec: float = Field(
        10.0, ge=0.01, le=10_000, allow_inf_nan=False, description="how many runs may begin per second"
    )
    limit: int = Field(MOST_AT_ONCE, ge=1, le=MOST_AT_ONCE, description="how many letters are dealt with")
    start_at: Moment | None = Field(None, description="when the first run may begin; now if it is not given")
    cursor: Cursor | None = Field(None, description="`next_cursor` of the answer before, with the same filter")

    @model_validator(mode="after")
    def _be_explicit(self) -> Self:
        _require_criteria(self.filter, self.all)
        return self


class LetterList(BaseModel):
    items: list[LetterView]
    next_cursor: str | None
    total_open: int


class GroupList(BaseModel):
    items: list[GroupView]
    total_open: int


class LetterRequeued(BaseModel):
    id: int
    run_id: str
    status: RunStatus
    attempt: int
    # The letters of the run that were open and are closed now.
    letters: list[int]


class LetterDeleted(BaseModel):
    id: int
    deleted: bool


def _require_criteria(chosen: Criteria, everything: bool) -> None:
    if not everything and all(getattr(chosen, name) is None for name in Criteria.model_fields):
        raise ValueError("name at least one criterion, or say with all=true that every letter is meant")

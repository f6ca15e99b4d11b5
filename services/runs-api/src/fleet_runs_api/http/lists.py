"""HTTP route that lists runs: as an array, or as pages with a cursor for callers that walk or follow the list."""

from typing import Annotated, Any

import orjson
from fastapi import Query
from fastapi.responses import Response
from pydantic import BeforeValidator

from fleet_contracts.names import Tag
from fleet_contracts.problems import Problem
from fleet_contracts.status import RunStatus
from fleet_kit.http.app import JsonResponse, answers_invalid_requests_with, new_router
from fleet_kit.http.identity import RunsReader
from fleet_kit.http.query_parameters import Moment

from ..accept.requests import LONGEST_LABEL, Label, Name
from ..read.lists.listing import ListQuery, Page
from ..read.lists.reads import RunFilter
from ..read.schemas import Include, RunInFull, RunPage, RunSummary
from .dependencies import Service

router = new_router()

_MOST_VALUES = 20
_ANY = "separated by commas, or given several times; any of them may fit"


def split(values: Any) -> Any:
    """Split values at commas: `a,b` is the same as giving the parameter twice."""
    return [part for value in values for part in value.split(",")] if isinstance(values, list) else values


def _split_or_whole(values: Any) -> Any:
    """Split values at commas, and keep each whole one that is short enough for a label, which may have commas."""
    if not isinstance(values, list):
        return values
    return list(dict.fromkeys([*(value for value in values if len(value) <= LONGEST_LABEL), *split(values)]))


Statuses = Annotated[list[RunStatus], BeforeValidator(split), Query(max_length=_MOST_VALUES, description=_ANY)]
Tags = Annotated[list[Tag], BeforeValidator(split), Query(max_length=_MOST_VALUES, description=f"of routing; {_ANY}")]
Labels = Annotated[
    list[Label], BeforeValidator(_split_or_whole), Query(max_length=_MOST_VALUES, description=f"labels; {_ANY}")
]
Flows = Annotated[list[Name], Query(max_length=_MOST_VALUES, description="may be given several times")]
Text = Annotated[
    Name | None, Query(description="beginning of a run id, or part of the flow's name or of the error, in any case")
]


@router.get("/runs", response_model=list[RunSummary | RunInFull] | RunPage)
@answers_invalid_requests_with(Problem.INVALID_LIST_QUERY)
async def list_runs(
    caller: RunsReader,
    service: Service,
    status: Statuses = [],  # noqa: B006 - FastAPI copies it
    flow: Flows = [],  # noqa: B006
    tag: Tags = [],  # noqa: B006
    tags: Labels = [],  # noqa: B006
    workflow_yaml_sha256: Annotated[
        Name | None, Query(max_length=64, description="digest of a workflow file")
    ] = None,
    q: Text = None,
    since: Annotated[Moment | None, Query(description="submitted at this moment or later")] = None,
    until: Annotated[Moment | None, Query(description="submitted at this moment or before")] = None,
    updated_after: Annotated[Moment | None, Query(description="changed after this moment, earliest first")] = None,
    cursor: Annotated[str | None, Query(max_length=500, description="of the page before; empty: the first")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    include: Annotated[list[Include], Query(description="records, full or all: whole runs")] = [],  # noqa: B006
) -> Response:
    """List runs, the newest accepted first, as an array; with `cursor` or `updated_after` page by page."""
    wanted = RunFilter(
        tenant_id=caller.tenant_id,
        statuses=tuple(dict.fromkeys(status)),
        flows=tuple(dict.fromkeys(flow)),
        tags=tuple(dict.fromkeys(tag)),
        labels=tuple(dict.fromkeys(tags)),
        workflow_yaml_sha256=workflow_yaml_sha256 and workflow_yaml_sha256.lower(),
        text=q,
        since=since,
        until=until,
    )
    query = ListQuery(wanted, limit, in_full=bool(include), cursor=cursor, updated_after=updated_after)
    page = await service.listing.page(query)
    return _page(page) if query.in_pages else _array(page)


def _array(page: Page) -> Response:
    """The runs as an array; the total and the next cursor go into headers."""
    headers = {}
    if page.total is not None:
        headers["X-Total-Count"] = str(page.total)
    if page.next_cursor is not None:
        headers["X-Next-Cursor"] = page.next_cursor
    return JsonResponse([orjson.Fragment(item) for item in page.items], headers=headers)


def _page(page: Page) -> Response:
    rest = RunPage(items=[], next_cursor=page.next_cursor, total=page.total, updated_until=page.updated_until)
    items = [orjson.Fragment(item) for item in page.items]
    return JsonResponse({**rest.model_dump(), "items": items})

"""HTTP routes about many runs at a time: watch them in one stream, and read their results in one answer."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import orjson
from fastapi import Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from pydantic import BeforeValidator, Field, StringConstraints

from fleet_kit.http.app import JsonResponse, new_router, sse_event
from fleet_kit.http.bodies import Body, read
from fleet_kit.http.identity import RunsReader
from fleet_kit.http.openapi import event_stream, json_body

from ..read.event_ids import EventId
from ..read.schemas import RunResults
from ..read.watching.many_runs import End, Full, Item, Ready, Told, Unknown, WatchQuery
from .dependencies import Service
from .lists import Labels, split

router = new_router()

_MOST_RUNS = 1_000
# More do not fit into an address.
_MOST_IN_ADDRESS = 200
# In a sentence.
_MOST_NAMED = 5

RunId = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]
RunIds = Annotated[
    list[RunId],
    BeforeValidator(split),
    Query(max_length=_MOST_IN_ADDRESS, description="run ids, separated by commas; for more there is POST"),
]
WithResults = Annotated[bool, Query(description="with the result of each run that has ended")]
Seconds = Annotated[int, Query(ge=1, le=600, description="the stream ends then")]
LastEventId = Annotated[str, Header(max_length=100, description="id of the last event seen")]


class ChosenRuns(Body):
    """The runs that a request is about."""

    run_ids: list[RunId] = Field(min_length=1, max_length=_MOST_RUNS)


@router.get("/runs/watch", response_class=StreamingResponse, responses=event_stream())
async def watch_runs(
    caller: RunsReader,
    service: Service,
    ids: RunIds = [],  # noqa: B006 - FastAPI copies it
    tags: Labels = [],  # noqa: B006
    results: WithResults = False,
    timeout_sec: Seconds = 600,
    last_event_id: LastEventId = "",
) -> Response:
    """Server-sent events about many runs: the state of each, every change, and each end once.

    The runs are chosen by `ids`, and the stream ends when all have ended, or by `tags`, with those that come later.
    """
    if bool(ids) == bool(tags):
        reason = "give either ids or tags"
        raise RequestValidationError([{"type": "ids_or_tags", "loc": ("query", "ids"), "msg": reason}])
    query = WatchQuery(
        caller.tenant_id,
        tuple(dict.fromkeys(ids)),
        tuple(dict.fromkeys(tags)),
        results,
        EventId.parse(last_event_id),
        timeout_sec,
    )
    return _stream(await service.watching_many.open(query))


@router.post(
    "/runs/watch",
    response_class=StreamingResponse,
    responses=event_stream(),
    openapi_extra=json_body(ChosenRuns),
)
async def watch_chosen_runs(
    request: Request,
    caller: RunsReader,
    service: Service,
    results: WithResults = False,
    timeout_sec: Seconds = 600,
    last_event_id: LastEventId = "",
) -> Response:
    """The same for up to 1,000 runs, whose ids do not fit into an address. It changes nothing."""
    chosen = await read(ChosenRuns, request)
    run_ids = tuple(dict.fromkeys(chosen.run_ids))
    query = WatchQuery(caller.tenant_id, run_ids, (), results, EventId.parse(last_event_id), timeout_sec)
    return _stream(await service.watching_many.open(query))


@router.post("/runs/results", response_model=RunResults, openapi_extra=json_body(ChosenRuns))
async def read_results(request: Request, caller: RunsReader, service: Service) -> Response:
    """The results of up to 1,000 runs in the order of their ids, or a part of them. It changes nothing."""
    chosen = await read(ChosenRuns, request)
    page = await service.bulk_results.page(chosen.run_ids, tenant_id=caller.tenant_id)
    return JsonResponse({"results": [orjson.Fragment(item) for item in page.items], "next": page.next})


def _stream(items: AsyncGenerator[Item | None]) -> Response:
    return StreamingResponse(_events(items), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _events(items: AsyncGenerator[Item | None]) -> AsyncGenerator[bytes]:
    async with aclosing(items):
        async for item in items:
            yield _event(item)


def _event(item: Item | None) -> bytes:
    match item:
        case None:
            return b": keepalive\n\n"
        case Told(body, event_id):
            return sse_event("run", body, event_id=None if event_id is None else str(event_id))
        case Unknown(run_ids):
            more = f" and {len(run_ids) - _MOST_NAMED} more" if len(run_ids) > _MOST_NAMED else ""
            detail = f"there are no such runs: {', '.join(run_ids[:_MOST_NAMED])}{more}"
            return sse_event("unknown", orjson.dumps({"run_ids": run_ids, "detail": detail}))
        case Ready(runs, ended, event_id):
            return sse_event("ready", orjson.dumps({"runs": runs, "ended": ended}), event_id=str(event_id))
        case End(runs):
            return sse_event("end", orjson.dumps({"runs": runs}))
        case Full(runs):
            detail = "a stream tells of no more runs; open another one"
            return sse_event("full", orjson.dumps({"runs": runs, "detail": detail}))

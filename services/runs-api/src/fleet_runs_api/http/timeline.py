"""HTTP routes of a run's events, logs and result."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

import orjson
from fastapi import Header, Query
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from pydantic_core import to_json

from fleet_kit.http.app import JsonResponse, new_router, sse_event
from fleet_kit.http.identity import RunsReader
from fleet_kit.http.openapi import event_stream, refusals

from ..errors import RunNotFinished, RunNotFound
from ..read.event_ids import EventId
from ..read.results import result_of
from ..read.schemas import RunResult, TimelinePage
from ..read.stream_schemas import LogEnd, LogOutput, RunUnchanged
from ..read.timeline.following import End, Output
from ..read.timeline.log_text import LogText
from ..read.timeline.timeline import Entry, LogFilter
from .bodies import NO_RUN, json_answer
from .dependencies import Service

router = new_router()

_LOG_EVENTS = event_stream(log=LogOutput, end=LogEnd, heartbeat=RunUnchanged)[200]
_LOG_ANSWERS = {
    "description": f"The output as text. With `follow`: {_LOG_EVENTS['description']}",
    "content": {"text/plain": {"schema": {"type": "string"}}, **_LOG_EVENTS["content"]},
}

Attempt = Annotated[int | None, Query(ge=1, description="only of this attempt")]


@router.get("/runs/{run_id}/events", response_model=TimelinePage, responses=NO_RUN)
async def read_events(
    run_id: str,
    caller: RunsReader,
    service: Service,
    attempt: Attempt = None,
    after: Annotated[
        str, Query(pattern=r"^([0-9a-f]{1,32}-)?[0-9]{1,19}$", description="`next` of a page, or an event's `id`")
    ] = "0",
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
) -> Response:
    """The run's timeline in order: its states, those of its tasks, and their output."""
    # A bare number, as earlier versions returned it, is a position in the present stream.
    place = EventId.parse(after) or int(after)
    page = await service.timeline.page(run_id, tenant_id=caller.tenant_id, attempt=attempt, after=place, limit=limit)
    return JsonResponse(
        {
            "run_id": run_id,
            "events": [_event(page.store, entry) for entry in page.entries],
            "next": None if page.next is None else str(EventId(page.store, page.next)),
            "truncated": page.truncated,
            "missing_batches": page.missing_batches,
        }
    )


@router.get(
    "/runs/{run_id}/logs",
    response_class=PlainTextResponse,
    responses={200: _LOG_ANSWERS, **NO_RUN},
)
async def read_logs(
    run_id: str,
    caller: RunsReader,
    service: Service,
    task: Annotated[str | None, Query(max_length=1000, description="only of this task")] = None,
    stream: Literal["stdout", "stderr"] | None = None,
    attempt: Attempt = None,
    prefix: Annotated[bool, Query(description="say in every line which task it is from")] = False,
    follow: Annotated[bool, Query(description="server-sent events until the run has ended")] = False,
    last_event_id: Annotated[
        str, Header(max_length=100, description="id of the last event seen; with `follow`")
    ] = "",
) -> Response:
    """The output of the run's tasks as text; with `follow` as server-sent events while it arrives."""
    wanted = LogFilter(task=task, stream=stream, attempt=attempt)
    if follow:
        after = EventId.parse(last_event_id)
        news = await service.following.open(run_id, tenant_id=caller.tenant_id, wanted=wanted, after=after)
        return StreamingResponse(
            _log_events(run_id, news), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
    pages = await service.timeline.log(run_id, tenant_id=caller.tenant_id, wanted=wanted)
    return StreamingResponse(_log_text(pages, LogText(prefixed=prefix)), media_type="text/plain")


@router.get(
    "/runs/{run_id}/result",
    response_model=RunResult,
    responses=refusals(RunNotFound, RunNotFinished),
)
async def read_result(
    run_id: str,
    caller: RunsReader,
    service: Service,
    partial: Annotated[bool, Query(description="also while the run goes on")] = False,
) -> Response:
    """The result of the flow and the outputs of its tasks; 409 until the run has ended."""
    snapshot = await service.views.find(run_id, tenant_id=caller.tenant_id)
    # Like a snapshot's own JSON: whole numbers of any size, no NaN.
    body = to_json(result_of(snapshot, partial=partial), inf_nan_mode="null")
    return json_answer(body)


async def _log_text(pages: AsyncIterator[list[Entry]], text: LogText) -> AsyncIterator[bytes]:
    async for page in pages:
        yield "".join(text.add(entry) for entry in page).encode()
    yield text.finish().encode()


async def _log_events(run_id: str, news: AsyncGenerator[Output | End | None]) -> AsyncIterator[bytes]:
    async with aclosing(news):
        async for said in news:
            match said:
                case None:
                    yield sse_event("heartbeat", orjson.dumps({"run_id": run_id, "ts": time.time()}))
                case End(status, attempt, error):
                    end = {"run_id": run_id, "status": status, "attempt": attempt, "error": error}
                    yield sse_event("end", orjson.dumps(end))
                case Output(store, entries):
                    yield b"".join(
                        sse_event("log", orjson.dumps(_output(entry)), event_id=str(EventId(store, entry.position)))
                        for entry in entries
                    )


def _event(store: str, entry: Entry) -> dict[str, Any]:
    event = entry.event
    return {
        "id": str(EventId(store, entry.position)),
        "at": event.at,
        "kind": event.kind,
        "status": event.status,
        "task": event.task,
        "stream": event.stream,
        "level": event.level,
        "text": event.text,
        "attempt": entry.attempt,
        "worker_id": entry.worker_id,
    }


def _output(entry: Entry) -> dict[str, Any]:
    event = entry.event
    return {
        "at": event.at,
        "task": event.task,
        "stream": event.stream,
        "level": event.level,
        "text": event.text,
        "attempt": entry.attempt,
    }

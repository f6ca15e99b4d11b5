"""The HTTP routes of workers-api."""

import time
from collections.abc import AsyncIterator
from typing import Annotated

import orjson
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from fleet_kit.http.app import JsonResponse, new_router, sse_event
from fleet_kit.http.bodies import read
from fleet_kit.http.identity import WorkersReader, WorkersWriter
from fleet_kit.http.openapi import event_stream, json_body, refusals

from .errors import WorkerNotFound
from .listing import Selection, select_workers
from .operators import Operators
from .registry import Registry
from .schemas import (
    AllWorkers,
    EventsQuery,
    Worker,
    WorkerChanged,
    WorkerDetail,
    WorkerPatch,
    WorkerPatched,
    WorkerRemoved,
    WorkersUnchanged,
    detail_json,
    summary_json,
)
from .watching import Changed, Everything, Gone, News, Watching

_NO_WORKER = refusals(WorkerNotFound)


def workers_routes(registry: Registry, operators: Operators, watching: Watching) -> APIRouter:
    router = new_router()

    @router.get("/workers", response_model=list[Worker])
    async def list_workers(_: WorkersReader, query: Annotated[Selection, Query()]) -> Response:
        """Workers, the one seen last first."""
        selected = select_workers(
            registry.records(), query, now=time.time(), disconnect_timeout_sec=registry.disconnect_timeout_sec
        )
        return JsonResponse([orjson.Fragment(summary_json(record, state)) for record, state in selected])

    @router.get(
        "/workers/events",
        response_class=StreamingResponse,
        responses=event_stream(
            workers=AllWorkers, worker=WorkerChanged, removed=WorkerRemoved, heartbeat=WorkersUnchanged
        ),
    )
    async def watch_workers(
        _: WorkersReader,
        query: Annotated[EventsQuery, Query()],
        last_event_id: Annotated[str, Header(max_length=100, description="id of the last event seen")] = "",
    ) -> Response:
        """Server-sent events: all workers, then every change. A heartbeat is no change."""
        news = watching.follow(
            last_event_id=last_event_id, include_hidden=query.include_hidden, seconds=query.timeout_sec
        )

        async def events() -> AsyncIterator[bytes]:
            async for item in news:
                yield _event(item, watching)

        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    @router.get("/workers/{worker_id}", response_model=WorkerDetail, responses=_NO_WORKER)
    async def read_worker(worker_id: str, _: WorkersReader) -> Response:
        """One worker with its flows and its machine."""
        record = registry.record(worker_id)
        return _json(detail_json(record, registry.state_of(record)))

    @router.patch("/workers/{worker_id}", responses=_NO_WORKER, openapi_extra=json_body(WorkerPatch))
    async def patch_worker(worker_id: str, request: Request, _: WorkersWriter) -> WorkerPatched:
        """Hide a worker from lists, or show it again."""
        wanted = await read(WorkerPatch, request)
        record = await operators.hide(worker_id, wanted.hidden)
        return WorkerPatched(worker_id=worker_id, hidden=record.hidden, updated_at=time.time())

    @router.post("/workers/{worker_id}/drain", response_model=Worker, responses=_NO_WORKER)
    async def drain_worker(worker_id: str, _: WorkersWriter) -> Response:
        """The worker finishes what it has begun and takes nothing new."""
        return await _drain(worker_id, wanted=True)

    @router.post("/workers/{worker_id}/resume", response_model=Worker, responses=_NO_WORKER)
    async def resume_worker(worker_id: str, _: WorkersWriter) -> Response:
        """The worker takes jobs again."""
        return await _drain(worker_id, wanted=False)

    async def _drain(worker_id: str, *, wanted: bool) -> Response:
        record = await operators.drain(worker_id, wanted)
        return _json(summary_json(record, registry.state_of(record)))

    return router


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _event(item: News | None, watching: Watching) -> bytes:
    about: dict[str, object]
    match item:
        case None:
            return sse_event("heartbeat", orjson.dumps({"ts": time.time()}))
        case Everything(workers=workers):
            kind, about = "workers", {"workers": [orjson.Fragment(worker) for worker in workers]}
        case Changed(worker=worker):
            kind, about = "worker", {"worker": orjson.Fragment(worker)}
        case Gone(worker_id=worker_id):
            kind, about = "removed", {"worker_id": worker_id}
    return sse_event(kind, orjson.dumps({**about, "ts": time.time()}), event_id=watching.event_id(item))

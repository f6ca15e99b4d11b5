"""HTTP routes of single runs: parse the request, call the use case, render the response. No logic here."""

import time
from collections.abc import AsyncIterator
from typing import Annotated

import orjson
from fastapi import Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from fleet_kit.http.app import new_router, sse_event
from fleet_kit.http.bodies import read
from fleet_kit.http.identity import MetricsReader, RunsReader, RunsWriter
from fleet_kit.http.openapi import event_stream, json_body
from fleet_kit.http.query_parameters import Moment

from ..accept.requests import CancelRun
from ..read.event_ids import EventId
from ..read.schemas import Attempts, Include, RunInFull
from .bodies import json_answer
from .dependencies import Service

router = new_router()

Includes = Annotated[list[Include], Query(description="records, full or all: with the task records")]


@router.get("/runs/{run_id}", response_model=RunInFull)
async def read_run(run_id: str, caller: RunsReader, service: Service, include: Includes = []) -> Response:  # noqa: B006
    """The latest state of a run."""
    snapshot = await service.views.find(run_id, tenant_id=caller.tenant_id)
    return json_answer(service.views.public(snapshot, with_records=bool(include)))


@router.get("/runs/{run_id}/tasks")
async def read_tasks(run_id: str, caller: RunsReader, service: Service) -> Response:
    """The tasks of a run with their records."""
    snapshot = await service.views.find(run_id, tenant_id=caller.tenant_id)
    shown = {"run_id", "flow_name", "status", "tasks", "task_records", "task_records_truncated", "attempt"}
    return json_answer(snapshot.model_dump_json(include=shown).encode())


@router.get("/runs/{run_id}/attempts", response_model=Attempts)
async def read_attempts(run_id: str, caller: RunsReader, service: Service) -> Response:
    """Every attempt of the run, and every decision about it with its reason."""
    attempts = await service.views.attempts(run_id, tenant_id=caller.tenant_id)
    return json_answer(attempts.model_dump_json().encode())


@router.post(
    "/runs/{run_id}/cancel",
    response_model=RunInFull,
    openapi_extra=json_body(CancelRun, required=False),
)
async def cancel_run(run_id: str, request: Request, caller: RunsWriter, service: Service) -> Response:
    """Ask a run to end: it is CANCELLING until it has ended. A run that has ended stays as it is."""
    wanted = await read(CancelRun, request, or_else=CancelRun())
    snapshot = await service.cancellation.cancel(run_id, caller, reason=wanted.reason)
    return json_answer(service.views.public(snapshot, with_records=False))


@router.get("/runs/{run_id}/watch", response_class=StreamingResponse, responses=event_stream())
async def watch_run(
    run_id: str,
    caller: RunsReader,
    service: Service,
    include: Includes = [],  # noqa: B006
    since: Annotated[Moment, Query(description="only states changed after this moment")] = 0.0,
    timeout_sec: Annotated[int, Query(ge=1, le=600, description="the stream ends then")] = 600,
    last_event_id: Annotated[str, Header(max_length=100, description="id of the last event seen")] = "",
) -> Response:
    """Server-sent events: the run's state whenever it changes, until it has ended."""
    states = await service.watching.open(
        run_id, tenant_id=caller.tenant_id, after=EventId.parse(last_event_id), since=since, seconds=timeout_sec
    )

    async def events() -> AsyncIterator[bytes]:
        async for state in states:
            now = time.time()
            if state is None:
                yield sse_event("heartbeat", orjson.dumps({"run_id": run_id, "ts": now}))
            else:
                shown = service.views.public(state.snapshot, with_records=bool(include))
                data = orjson.dumps({"run_id": run_id, "snapshot": orjson.Fragment(shown), "ts": now})
                yield sse_event("snapshot", data, event_id=str(state.id))

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


@router.get("/fleet/metrics")
async def read_fleet_metrics(_: MetricsReader, service: Service) -> Response:
    """The gateway's /metrics: series about the whole fleet, without names of flows or tags.

    Its cost does not depend on the number of runs.
    """
    await service.gauges.show_fleet()
    return Response(generate_latest(service.metrics.of_fleet()), media_type=CONTENT_TYPE_PLAIN_0_0_4)

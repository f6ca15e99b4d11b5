"""HTTP in and out: parse at the door, call the use case, answer. No logic here."""

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from fleet_contracts.names import TAG_PATTERN
from fleet_contracts.problems import Problem
from fleet_contracts.status import RunStatus
from fleet_kit.http import answers_invalid_requests_with, sse_event
from fleet_kit.identity import Caller, identity_of
from fleet_kit.metrics import CONTENT_TYPE, render

from .dependencies import Service, service_of
from .queries import RunFilter
from .schemas import CancelRun, Include, RunSummary, SubmitRun, Submitted

M = TypeVar("M", bound=BaseModel)

router = APIRouter()

Includes = Annotated[list[Include], Query(description="records, full or all: with the task records")]


@router.post(
    "/runs",
    response_model=Submitted,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": SubmitRun.model_json_schema()}},
        }
    },
)
async def submit_run(request: Request, caller: Caller, service: Service) -> Response:
    """Submit a run. It is on disk before the answer is sent."""
    wanted = _parse(SubmitRun, await request.body())
    job = await service.submission.submit(wanted, caller)
    service.metrics.submitted.inc()
    return _json(Submitted(run_id=job.run_id, status=RunStatus.PENDING).model_dump_json().encode())


async def submit_run_express(request: Request) -> Response:
    """The same past the framework: see EXPRESS."""
    return await submit_run(request, await identity_of(request), await service_of(request))


@router.get("/runs", response_model=list[RunSummary])
@answers_invalid_requests_with(Problem.INVALID_LIST_QUERY)
async def list_runs(
    caller: Caller,
    service: Service,
    status: RunStatus | None = None,
    flow: Annotated[str | None, Query(max_length=200)] = None,
    tag: Annotated[str | None, Query(pattern=TAG_PATTERN, max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    include: Includes = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """The newest runs first."""
    wanted = RunFilter(tenant_id=caller.tenant_id, status=status, flow_name=flow, tag=tag)
    if include:
        full = await service.views.newest_in_full(wanted, limit=limit)
        return _json_list([service.views.public(snapshot, with_records=True) for snapshot in full])
    return _json_list([s.model_dump_json().encode() for s in await service.views.newest(wanted, limit=limit)])


@router.get("/runs/{run_id}")
async def read_run(run_id: str, caller: Caller, service: Service, include: Includes = []) -> Response:  # noqa: B006
    snapshot = await service.views.find(run_id, tenant_id=caller.tenant_id)
    return _json(service.views.public(snapshot, with_records=bool(include)))


@router.get("/runs/{run_id}/tasks")
async def read_tasks(run_id: str, caller: Caller, service: Service) -> Response:
    snapshot = await service.views.find(run_id, tenant_id=caller.tenant_id)
    shown = {"run_id", "flow_name", "status", "tasks", "task_records", "task_records_truncated", "attempt"}
    return _json(snapshot.model_dump_json(include=shown).encode())


@router.post(
    "/runs/{run_id}/cancel",
    openapi_extra={
        "requestBody": {"content": {"application/json": {"schema": CancelRun.model_json_schema()}}},
    },
)
async def cancel_run(run_id: str, request: Request, caller: Caller, service: Service) -> Response:
    """Ask a run to end: CANCELLING until it has. A run that has ended stays as it is."""
    body = await request.body()
    wanted = _parse(CancelRun, body) if body else CancelRun()
    snapshot = await service.cancellation.cancel(run_id, caller, reason=wanted.reason)
    return _json(service.views.public(snapshot, with_records=False))


@router.get("/runs/{run_id}/watch", response_class=StreamingResponse)
async def watch_run(
    run_id: str,
    caller: Caller,
    service: Service,
    include: Includes = [],  # noqa: B006
    since: Annotated[float, Query(ge=0, description="only states changed after this moment, in unix seconds")] = 0.0,
    timeout_sec: Annotated[int, Query(ge=1, le=600)] = 600,
    last_event_id: Annotated[int, Header(ge=0)] = 0,
) -> Response:
    """Server-sent events: the run's state whenever it changes, until it has ended."""
    states = await service.watching.open(
        run_id, tenant_id=caller.tenant_id, after_revision=last_event_id, since=since, seconds=timeout_sec
    )

    async def events() -> AsyncIterator[bytes]:
        async for state in states:
            now = time.time()
            if state is None:
                yield sse_event("heartbeat", b'{"run_id":"%b","ts":%f}' % (run_id.encode(), now))
            else:
                shown = service.views.public(state.snapshot, with_records=bool(include))
                data = b'{"run_id":"%b","snapshot":%b,"ts":%f}' % (run_id.encode(), shown, now)
                yield sse_event("snapshot", data, event_id=state.revision)

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


@router.get("/metrics")
async def read_metrics(service: Service) -> Response:
    """What operators scrape; its cost does not depend on the number of runs."""
    await service.refresh_metrics()
    return Response(render(service.metrics.registry), media_type=CONTENT_TYPE)


# Half of what the framework does for a submit is not needed for it, and submits come by the thousand.
EXPRESS = {("POST", "/runs"): submit_run_express}


def _parse(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate(from_json(body, allow_inf_nan=False))
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_context=False)) from error
    except ValueError as error:
        detail: dict[str, Any] = {"type": "json_invalid", "loc": ("body",), "msg": f"not valid JSON: {error}"}
        raise RequestValidationError([detail]) from error


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _json_list(items: list[bytes]) -> Response:
    return _json(b"[" + b",".join(items) + b"]")

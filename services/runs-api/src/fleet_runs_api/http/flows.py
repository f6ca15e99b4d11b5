"""HTTP routes of flows: what live workers offer."""

import time
from collections.abc import AsyncIterator
from typing import Annotated

import orjson
from fastapi import Header, Query
from fastapi.responses import Response, StreamingResponse

from fleet_kit.http.app import new_router, sse_event
from fleet_kit.http.identity import WorkersReader
from fleet_kit.http.openapi import event_stream, refusals

from ..errors import FlowNotFound
from ..read.flow_schemas import FlowDetail, FlowList, FlowsChanged, FlowsUnchanged
from .bodies import json_answer
from .dependencies import Service

router = new_router()


@router.get("/flows", response_model=FlowList)
async def list_flows(_: WorkersReader, service: Service) -> Response:
    """The flows that live workers offer, and the sources that they could not load."""
    return json_answer(await service.flows.listed())


@router.get(
    "/flows/events",
    response_class=StreamingResponse,
    responses=event_stream(flows=FlowsChanged, heartbeat=FlowsUnchanged),
)
async def watch_flows(
    _: WorkersReader,
    service: Service,
    timeout_sec: Annotated[int, Query(ge=1, le=600, description="the stream ends then")] = 600,
    last_event_id: Annotated[str, Header(max_length=100, description="id of the last event seen")] = "",
) -> Response:
    """Server-sent events: the list of flows, and again whenever something in it changes."""
    news = service.flows.follow(last_event_id=last_event_id, seconds=timeout_sec)

    async def events() -> AsyncIterator[bytes]:
        async for item in news:
            now = time.time()
            if item is None:
                yield sse_event("heartbeat", orjson.dumps({"ts": now}))
            else:
                event_id, listed = item
                yield sse_event("flows", b'{"ts":%f,' % now + listed[1:], event_id=event_id)

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


@router.get("/flows/{flow_name:path}", response_model=FlowDetail, responses=refusals(FlowNotFound))
async def read_flow(flow_name: str, _: WorkersReader, service: Service) -> Response:
    """One flow: its params, graph and defaults, and who offers it."""
    return json_answer((await service.flows.find(flow_name)).model_dump_json().encode())

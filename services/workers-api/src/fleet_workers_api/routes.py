"""HTTP in and out of workers-api."""

import time
from typing import Annotated

from fastapi import APIRouter, Query

from fleet_kit.identity import WorkersReader

from .listing import select_workers
from .registry import Registry
from .schemas import Worker, WorkersQuery


def workers_routes(registry: Registry, *, disconnect_timeout_sec: float) -> APIRouter:
    router = APIRouter()

    @router.get("/workers")
    async def list_workers(_: WorkersReader, query: Annotated[WorkersQuery, Query()]) -> list[Worker]:
        selected = select_workers(
            registry.records(),
            query.selection(),
            now=time.time(),
            disconnect_timeout_sec=disconnect_timeout_sec,
        )
        return [Worker.of(record) for record in selected]

    return router

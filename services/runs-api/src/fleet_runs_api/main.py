"""The only wiring of the runs service."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from fleet_kit.http.app import create_app
from fleet_kit.http.serve import run_service

from .http.dead_letters import router as dead_letter_router
from .http.lists import router as list_router
from .http.runs import router
from .http.submits import EXPRESS
from .http.submits import router as submit_router
from .http.timeline import router as timeline_router
from .http.workflows import router as workflow_router
from .metrics import RunsMetrics
from .service import RunsService
from .settings import RunsSettings

_SWITCH_INTERVAL_SECONDS = 0.0005


def build(settings: RunsSettings) -> FastAPI:
    metrics = RunsMetrics(revision=settings.revision, max_flows=settings.metrics_max_flows)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with RunsService(settings, metrics) as service:
            app.state.service = service
            yield

    async def readiness() -> dict[str, str]:
        service: RunsService = app.state.service
        return await service.waiting_for()

    async def refresh() -> None:
        service: RunsService = app.state.service
        await service.gauges.refresh()

    app = create_app(
        component="runs-api",
        routers=[submit_router, list_router, router, timeline_router, workflow_router, dead_letter_router],
        lifespan=lifespan,
        readiness=readiness,
        registry=metrics.registry,
        refresh=refresh,
        express=EXPRESS,
        # The gateway's /metrics.
        untraced=frozenset({"/fleet/metrics"}),
    )
    return app


def main() -> None:
    # The ledger's thread gives up the interpreter at every SQL call; with the default of 5 ms it would wait that
    # long, several times per commit, to get it back from a busy event loop. With much less than this a thread that
    # exports spans would cost more in switching than in exporting.
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    run_service("runs-api", RunsSettings, build)

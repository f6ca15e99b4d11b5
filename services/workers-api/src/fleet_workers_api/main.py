"""Wires workers-api together and runs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from fleet_contracts.problems import Problem
from fleet_kit.http import create_app
from fleet_kit.metrics import new_registry
from fleet_kit.nats import NatsLink
from fleet_kit.serve import run_service

from .registry import Registry
from .routes import workers_routes
from .settings import Settings

COMPONENT = "workers-api"


def build(settings: Settings) -> FastAPI:
    link = NatsLink(settings, name=COMPONENT)
    registry = Registry(link, settings.workers_kv_bucket)
    link.after_connect(registry.load)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            async with link:
                yield
        finally:
            await registry.stop()

    async def readiness() -> dict[str, str]:
        return {"nats": reason} if (reason := link.down_because) is not None else {}

    return create_app(
        component=COMPONENT,
        routers=[workers_routes(registry, disconnect_timeout_sec=settings.worker_disconnect_timeout_sec)],
        lifespan=lifespan,
        readiness=readiness,
        registry=new_registry(COMPONENT),
        invalid_request=Problem.INVALID_WORKERS_REQUEST,
    )


def main() -> None:
    run_service(COMPONENT, Settings, build)

"""Wires workers-api together and runs it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from fleet_contracts.problems import Problem
from fleet_kit.http.app import ServiceApp, create_app
from fleet_kit.http.serve import run_service
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.metrics import NatsMetrics
from fleet_kit.telemetry.metrics import new_registry

from .metrics import WorkersMetrics
from .operators import Operators
from .registry import Registry
from .removal import Removal
from .routes import workers_routes
from .settings import Settings
from .watching import Watching

COMPONENT = "workers-api"


def build(settings: Settings) -> ServiceApp:
    link = NatsLink(settings, name=COMPONENT)
    registry = Registry(
        link,
        settings.workers_kv_bucket,
        disconnect_timeout_sec=settings.worker_disconnect_timeout_sec,
        replicas=settings.nats_replicas,
    )
    operators = Operators(link, registry, settings)
    watching = Watching(link, registry)
    removal = Removal(link, registry, ttl_sec=settings.worker_record_ttl_sec)
    prometheus = new_registry(COMPONENT, revision=settings.revision)
    WorkersMetrics(prometheus, registry, watching)
    NatsMetrics(link, prometheus, component=COMPONENT)
    link.after_connect(registry.load)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work) for work in (watching.judge(), removal.run())]
        try:
            async with link:
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await registry.stop()

    return create_app(
        component=COMPONENT,
        routers=[workers_routes(registry, operators, watching)],
        lifespan=lifespan,
        readiness=link.waiting_for,
        registry=prometheus,
        invalid_request=Problem.INVALID_WORKERS_REQUEST,
    )


def main() -> None:
    run_service(COMPONENT, Settings, build)

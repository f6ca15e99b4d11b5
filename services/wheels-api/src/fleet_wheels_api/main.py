"""Wires wheels-api together and runs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from fleet_kit.http import create_app
from fleet_kit.metrics import new_registry
from fleet_kit.nats import NatsLink
from fleet_kit.serve import run_service

from .settings import Settings
from .storage import Storage

COMPONENT = "wheels-api"


def build(settings: Settings) -> FastAPI:
    link = NatsLink(settings, name=COMPONENT)
    storage = Storage(link, settings)
    link.after_connect(storage.ensure)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with link:
            yield

    async def readiness() -> dict[str, str]:
        return {"nats": reason} if (reason := link.down_because) is not None else {}

    return create_app(
        component=COMPONENT,
        routers=[],
        lifespan=lifespan,
        readiness=readiness,
        registry=new_registry(COMPONENT),
    )


def main() -> None:
    run_service(COMPONENT, Settings, build)

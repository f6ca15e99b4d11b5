"""Wires auth together and runs it."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from fleet_kit.http.app import ServiceApp, create_app
from fleet_kit.http.serve import run_service
from fleet_kit.logs.events import log_feature_flags
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.metrics import NatsMetrics
from fleet_kit.telemetry.metrics import new_registry

from .authentication import as_anonymous, by_api_key
from .keys import Keys
from .metrics import AuthMetrics
from .routes import key_routes, verify_routes
from .settings import Settings

logger = logging.getLogger(__name__)

COMPONENT = "auth"


def build(settings: Settings) -> ServiceApp:
    log_feature_flags(logger, settings, "http_auth_mode")
    link = NatsLink(settings, name=COMPONENT)
    keys = Keys(link, settings, stale_sec=settings.auth_stale_sec)
    link.after_connect(keys.load)
    authenticate = by_api_key(keys) if settings.http_auth_mode == "api_key" else as_anonymous
    prometheus = new_registry(COMPONENT, revision=settings.revision)
    NatsMetrics(link, prometheus, component=COMPONENT)
    verifying = verify_routes(
        authenticate, AuthMetrics(prometheus, keys), api_key_header=settings.http_api_key_header
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            async with link:
                yield
        finally:
            await keys.stop()

    return create_app(
        component=COMPONENT,
        routers=[verifying, key_routes(keys)],
        lifespan=lifespan,
        readiness=link.waiting_for,
        registry=prometheus,
        # The gateway sends one for every request: they would outnumber all other traces.
        untraced=frozenset({"/verify"}),
    )


def main() -> None:
    run_service(COMPONENT, Settings, build)

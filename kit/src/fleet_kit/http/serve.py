"""Run a service's application under uvicorn until it is told to stop."""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import uvicorn
from fastapi import FastAPI

from fleet_contracts.log_events import SERVICE_HTTP

from ..logs.setup import configure_logging, failure_fields
from ..privacy import keep_private
from ..settings import FleetSettings, HttpSettings, SettingsError
from ..telemetry.setup import configure_tracing
from .app import listen_when_ready
from .gateway_only import GatewayOnly
from .protocol import EnvelopeProtocol

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=HttpSettings)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.config.uds:
            # uvicorn opens it to everybody.
            os.chmod(self.config.uds, 0o600)


def run_service(component: str, settings_class: type[S], build: Callable[[S], FastAPI]) -> None:
    """The main function of a service: settings, logging, tracing, serve, clean stop."""
    # The ledger's file and what is uploaded are for their owner's eyes only.
    os.umask(0o077)
    # Flows run as the same user, and secrets stand in this process's environment.
    keep_private()
    # uvicorn stops at a signal and then raises it again: by default that would kill us before our clean-up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    try:
        settings = settings_class.load()
        # Before tracing: what that library has to say are lines, too.
        configure_logging(service=SERVICE_HTTP, component=component, settings=settings)
        tracing = configure_tracing(component)
    except SettingsError as error:
        # How it would be logged is a setting, too: if that is not the bad one, it is done so.
        configure_logging(service=SERVICE_HTTP, component=component, settings=FleetSettings.only_of_logging())
        logger.critical("%s", error, extra=failure_fields(error))
        sys.exit(1)
    where = settings.uds or f"{settings.host}:{settings.port}"
    logger.info("%s starts on %s", component, where)
    app = build(settings)
    if settings.ready_wait_sec:
        listen_when_ready(app, within_seconds=settings.ready_wait_sec)
    config = uvicorn.Config(
        app if settings.gateway_secret is None else GatewayOnly(app, settings.gateway_secret),
        uds=settings.uds,
        host=settings.host,
        port=settings.port,
        loop="auto",
        http=EnvelopeProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # Nobody reads the client's address from the scope; who asks is told by the gateway's own headers.
        proxy_headers=False,
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )
    try:
        _Server(config).run()
    finally:
        if settings.uds:
            Path(settings.uds).unlink(missing_ok=True)
        if tracing is not None:
            tracing.shutdown()
        logger.info("%s has stopped", component)

"""Runs a service's application under uvicorn until SIGTERM or SIGINT."""

import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import uvicorn

from fleet_contracts.log_events import SERVICE_HTTP

from ..logs.setup import configure_logging, failure_fields
from ..privacy import keep_private
from ..settings import FleetSettings, HttpSettings, SettingsError
from ..telemetry.setup import configure_tracing, stop_tracing
from .app import ServiceApp, listen_when_ready
from .gateway_only import GatewayOnly
from .protocol import EnvelopeProtocol

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=HttpSettings)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _collect_less()
        if self.config.uds:
            # uvicorn makes the socket accessible to every user.
            os.chmod(self.config.uds, 0o600)


def _collect_less() -> None:
    """What is loaded by now stays: collections need not look at it again, nor the end of the process.

    A stack stops with 1 s less of CPU time. Other figures are in bench/ablation.md.
    """
    gc.freeze()
    # Allocations between two collections of young objects; Python's own is 700. A batch of 1,000 runs makes some ten
    # thousand objects that all go when it has been answered.
    gc.set_threshold(20_000, *gc.get_threshold()[1:])
    # The main module of a service may have turned it off while it was loading.
    gc.enable()


def run_service(component: str, settings_class: type[S], build: Callable[[S], ServiceApp]) -> None:
    """The main function of a service: settings, logging, tracing, serve, clean stop."""
    # Only the owner may read the ledger's file and uploads.
    os.umask(0o077)
    # Flows run as the same user, and the environment of this process holds secrets.
    keep_private()
    # uvicorn stops at a signal and then raises it again: by default that would kill us before our clean-up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    try:
        settings = settings_class.load()
        # Before tracing, so that the messages of its library are log lines, too.
        configure_logging(service=SERVICE_HTTP, component=component, settings=settings)
        tracing = configure_tracing(component)
    except SettingsError as error:
        # The log format is a setting, too; it is used unless it is the invalid one.
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
        # The client's address in the scope is not used; the gateway's headers carry the identity.
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
        stop_tracing(tracing)
        logger.info("%s has stopped", component)

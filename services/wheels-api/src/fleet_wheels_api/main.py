"""Wires wheels-api together and runs it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from fleet_kit.http.app import ServiceApp, create_app
from fleet_kit.http.serve import run_service
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.metrics import NatsMetrics
from fleet_kit.nats.resources import ensure_bucket, ensure_object_store
from fleet_kit.nats.stores.object_writing import ObjectWriter
from fleet_kit.telemetry.metrics import new_registry

from .history import History
from .metrics import Metrics, StoreGauges
from .registry import Registry
from .routes import wheels_routes
from .settings import Settings
from .sweeping import Sweeper

COMPONENT = "wheels-api"


def build(settings: Settings) -> ServiceApp:
    link = NatsLink(settings, name=COMPONENT)
    prometheus = new_registry(COMPONENT, revision=settings.revision)
    metrics = Metrics(prometheus)
    NatsMetrics(link, prometheus, component=COMPONENT)
    store = ObjectWriter(link, settings.wheel_object_store_bucket, draft_seconds=settings.wheel_orphan_sec / 2)
    history = History(link, settings.wheel_history_kv_bucket)
    registry = Registry(
        store,
        history,
        history_ttl_sec=settings.wheel_history_ttl_sec,
        most_unpacked_bytes=settings.wheel_max_unpacked_bytes,
    )
    sweeper = Sweeper(link, registry, store, metrics, interval_sec=settings.wheel_sweep_interval_sec)
    gauges = StoreGauges(link, registry, metrics, bucket=settings.wheel_object_store_bucket)
    link.after_connect(partial(make_stores, link, settings))
    link.after_connect(sweeper.wake)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with link:
            sweeping = asyncio.create_task(sweeper.run())
            try:
                yield
            finally:
                sweeper.stop()
                await sweeping

    return create_app(
        component=COMPONENT,
        routers=[
            wheels_routes(
                link,
                registry,
                store,
                history,
                metrics,
                most_bytes=settings.wheel_max_bytes,
                upload_dir=settings.wheel_upload_dir,
            )
        ],
        lifespan=lifespan,
        readiness=link.waiting_for,
        registry=prometheus,
        refresh=gauges.refresh,
    )


async def make_stores(link: NatsLink, settings: Settings) -> None:
    """Create the object store and the bucket of the history if missing."""
    js, replicas = link.jetstream, settings.nats_replicas
    await ensure_object_store(js, settings.wheel_object_store_bucket, replicas=replicas)
    await ensure_bucket(
        js, settings.wheel_history_kv_bucket, ttl_sec=settings.wheel_history_ttl_sec, replicas=replicas
    )


def main() -> None:
    run_service(COMPONENT, Settings, build)

"""The only wiring of the runs service: its parts, what they are given, when they start and stop."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime

from fastapi import FastAPI

from fleet_kit.http.app import ServiceApp, create_app
from fleet_kit.http.serve import run_service
from fleet_kit.logs.rate_limit import RateLimitedLog
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.metrics import NatsMetrics
from fleet_kit.nats.resources import ensure_bucket, ensure_stream
from fleet_kit.nats.streams import dlq_stream_config, events_stream_config, work_stream_config

from .accept.cancellation import Cancellation
from .accept.submission import Submission
from .accept.terms import FlowTerms
from .dead_letters.arrivals import DeadLetterIngest
from .dead_letters.handling import DeadLetters
from .dispatch.declined import DeclinedJobs
from .dispatch.queued_jobs import QueuedJobs
from .dispatch.queues import Queues
from .dispatch.relay import Relay
from .errors import LedgerUnavailable
from .fold.ingest import Ingest
from .http.dead_letters import router as dead_letter_router
from .http.flows import router as flow_router
from .http.lists import router as list_router
from .http.many_runs import router as many_runs_router
from .http.runs import router
from .http.submits import EXPRESS
from .http.submits import router as submit_router
from .http.timeline import router as timeline_router
from .http.workflows import router as workflow_router
from .ledger import outbox
from .ledger.accepted import AcceptedRuns
from .ledger.database import Database
from .ledger.disk import LedgerDisk
from .ledger.shared_secrets import agree
from .ledger.writer import GroupCommit
from .live.catalogues import Catalogues
from .live.run_store import RunStore
from .live.workers import FleetView
from .metrics import RunsMetrics
from .read.bulk_results import BulkResults
from .read.cursor import CursorSigner
from .read.flows import FlowViews
from .read.gauges import FleetGauges
from .read.lists.listing import Listing
from .read.states import RunStates
from .read.timeline.following import Following
from .read.timeline.timeline import Timeline
from .read.views import RunViews
from .read.watching.hub import WatchHub
from .read.watching.many_runs import WatchingMany
from .read.watching.one_run import Watching
from .repair.expiry import Expiry
from .repair.left_catalogues import LeftCatalogues
from .repair.retention import Retention
from .repair.sweeper import Sweeper
from .repair.unclaimed import Unclaimed
from .resources import Resources
from .settings import RunsSettings

logger = logging.getLogger(__name__)

_LEDGER_RETRY_SECONDS = 1.0


class RunsService:
    """All parts of the service, how they prepare JetStream, and their background work."""

    def __init__(self, settings: RunsSettings) -> None:
        self._settings = settings
        self.workflow_yaml_max_bytes = settings.workflow_yaml_max_bytes
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._ledger_missing: str | None = "not opened yet"
        # Creation times of the work stream and the runs bucket. If one changes, JetStream has lost its data.
        self._made: dict[str, datetime | None] = {}

        self.metrics = metrics = RunsMetrics(revision=settings.revision, max_flows=settings.metrics_max_flows)
        self.link = NatsLink(settings, name="runs-api")
        self._database = Database(settings.runs_database_url)
        self._commits = GroupCommit(self._database.writer, on_commit=self._on_commit)
        runs = RunStore(self.link, settings.runs_kv_bucket)
        shared = Resources(settings, metrics, self.link, runs, self._database, self._commits)
        self._disk = LedgerDisk(self._database.folder, settings)
        self._queues = Queues(self.link, settings)
        self._fleet = FleetView(
            self.link,
            bucket=settings.workers_kv_bucket,
            disconnect_timeout_sec=settings.worker_disconnect_timeout_sec,
            start_command=settings.worker_start_command,
            on_tags=self._queues.want,
        )
        self.catalogues = Catalogues(self.link, bucket=settings.flows_kv_bucket, workers=self._fleet)
        self._relay = Relay(shared)
        self._ingest = Ingest(shared, on_retry=self._relay.wake)
        self._dead_letter_ingest = DeadLetterIngest(shared)
        jobs = QueuedJobs(shared)
        self._declined = DeclinedJobs(
            shared, jobs=jobs, workers=self._fleet, catalogues=self.catalogues, on_requeue=self._relay.wake
        )
        self._expiry = Expiry(shared, jobs=jobs, declined=self._declined, on_requeue=self._relay.wake)
        unclaimed = Unclaimed(shared, queues=self._queues, workers=self._fleet, declined=self._declined)
        left_catalogues = LeftCatalogues(shared, workers=self._fleet, catalogues=self.catalogues)
        self._retention = Retention(shared, left_catalogues=left_catalogues)
        self._sweeper = Sweeper(shared, relay=self._relay, expiry=self._expiry, jobs=jobs, unclaimed=unclaimed)

        accepted = AcceptedRuns(self._database)
        terms = FlowTerms(self.catalogues, default_tag=settings.default_tag)
        self.submission = Submission(shared, terms=terms, accepted=accepted, relay=self._relay, disk=self._disk)
        self.views = RunViews(
            shared,
            accepted=accepted,
            workers=self._fleet,
            is_unclaimed=unclaimed.has,
            why_declined=self._declined.why_waiting,
        )
        self.flows = FlowViews(shared, catalogues=self.catalogues)
        self._cursors = CursorSigner()
        self.listing = Listing(shared, cursors=self._cursors, views=self.views)
        self._watch_hub = WatchHub(shared, views=self.views)
        self.watching = Watching(self._watch_hub, views=self.views)
        states = RunStates(shared)
        self.watching_many = WatchingMany(shared, hub=self._watch_hub, states=states, listing=self.listing)
        self.bulk_results = BulkResults(states)
        self.timeline = Timeline(shared, views=self.views)
        self.following = Following(shared, timeline=self.timeline, watching=self.watching)
        self.cancellation = Cancellation(shared, views=self.views, relay=self._relay, jobs=jobs)
        self.dead_letters = DeadLetters(shared, cursors=self._cursors, relay=self._relay)
        self.gauges = FleetGauges(shared, workers=self._fleet)
        NatsMetrics(self.link, metrics.registry, component="runs-api")
        metrics.watchers.set_function(lambda: self._watch_hub.watcher_count)
        metrics.followers.set_function(lambda: self.following.follower_count)
        metrics.disk_free.set_function(self._disk.free_bytes)

        for hook in (
            self._ensure_resources,
            self._queues.look_again,
            self._fleet.mirror.restart,
            self.catalogues.mirror.restart,
            self._ingest.consumer.prepare,
            self._dead_letter_ingest.consumer.prepare,
            self._declined.listen,
            self._expiry.listen,
            self._watch_hub.resume,
        ):
            self.link.after_connect(hook)

    async def __aenter__(self) -> None:
        await self.link.__aenter__()
        # The queues do not wait for the ledger to open, because workers wait for them.
        self._begin(self._queues.run(self._stop), self._work())

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cancellation.stop()
        await self._declined.stop()
        await self._expiry.stop()
        await self.following.stop()
        await self._watch_hub.stop()
        await self._fleet.mirror.stop()
        await self.catalogues.mirror.stop()
        await self._ingest.consumer.stop()
        await self._dead_letter_ingest.consumer.stop()
        await self._commits.stop()
        await self.link.__aexit__()
        self._database.dispose()

    async def waiting_for(self) -> dict[str, str]:
        missing = {
            "nats": self.link.down_because or self.link.full_because,
            "ledger": self._ledger_missing,
            "disk": self._disk.full_because,
        }
        return {part: reason for part, reason in missing.items() if reason}

    def _on_commit(self, writes: int, seconds: float) -> None:
        self.metrics.commit_writes.observe(writes)
        self.metrics.commit_seconds.observe(seconds)

    async def _work(self) -> None:
        await self._open_ledger()
        loops = (
            self._ingest,
            self._dead_letter_ingest,
            self._relay,
            self._sweeper,
            self._retention,
            self._watch_hub,
        )
        self._begin(self._disk.run(self._stop), *(loop.run(self._stop) for loop in loops))

    def _begin(self, *work: Coroutine[None, None, None]) -> None:
        self._tasks += [asyncio.create_task(each) for each in work]

    async def _open_ledger(self) -> None:
        failures = RateLimitedLog()
        while self._ledger_missing is not None:
            try:
                await asyncio.to_thread(self._database.migrate)
                self._commits.start()
                if self._database.is_sqlite:
                    # No other process writes this file, so the outbox rows were left by a process that has ended.
                    await self._commits.write(outbox.make_due_now, time.time())
                self._cursors.secret = (await self._cursor_secret()).encode()
                self._ledger_missing = None
            except Exception as error:  # noqa: BLE001 - logged; without a ledger nothing else can be done
                reason = error.meta.get("reason", error) if isinstance(error, LedgerUnavailable) else None
                self._ledger_missing = str(reason or type(error).__name__)
                failures.log(logger, "the ledger cannot be opened yet", error)
                await asyncio.sleep(_LEDGER_RETRY_SECONDS)

    async def _cursor_secret(self) -> str:
        if (given := self._settings.cursor_secret) is not None:
            return given.get_secret_value()
        return await self._commits.write(agree, "cursor")

    async def _ensure_resources(self) -> None:
        js, settings = self.link.jetstream, self._settings
        replicas = settings.nats_replicas
        work = await ensure_stream(js, work_stream_config(settings), replicas=replicas)
        await ensure_stream(js, dlq_stream_config(settings, settings), replicas=replicas)
        await ensure_stream(js, events_stream_config(settings, settings), replicas=replicas)
        runs = await ensure_bucket(js, settings.runs_kv_bucket, replicas=replicas)
        await ensure_bucket(js, settings.flows_kv_bucket, replicas=replicas)
        # This bucket belongs to workers-api, which may start later.
        await ensure_bucket(js, settings.workers_kv_bucket, replicas=replicas, owned=False)
        made = {"work": work.created, "runs": runs.created}
        if made != self._made:
            self._made = made
            self._sweeper.recheck_all()


def build(settings: RunsSettings) -> ServiceApp:
    service = RunsService(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service:
            yield

    app: ServiceApp = create_app(
        component="runs-api",
        routers=[
            submit_router,
            list_router,
            # Before the routes of one run: /runs/watch is none of a run with this id.
            many_runs_router,
            router,
            timeline_router,
            workflow_router,
            dead_letter_router,
            flow_router,
        ],
        lifespan=lifespan,
        readiness=service.waiting_for,
        registry=service.metrics.registry,
        refresh=service.gauges.refresh,
        express=EXPRESS,
        # The gateway's /metrics.
        untraced=frozenset({"/fleet/metrics"}),
    )
    app.state.service = service
    return app


def main() -> None:
    run_service("runs-api", RunsSettings, build)

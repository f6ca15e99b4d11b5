"""The agent: pulls jobs from NATS, hands them to runners, sends heartbeats, and hands back runs when it stops."""

import asyncio
import logging
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from fleet_contracts.control import JOB_REFUSED, JOB_TAKEN, Control
from fleet_contracts.log_events import LogEvent
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.pull import Puller
from fleet_kit.privacy import keep_private

from ..boundary.descendants import orphans
from ..boundary.frames import Setup
from ..boundary.terminal import has_terminal
from ..boundary.wheel_set import NO_WHEELS
from ..job.answers import Answers
from ..job.claims import Claims
from ..job.declining import Declining
from ..job.delivery import Delivery
from ..job.invalid import InvalidJobs
from ..job.services import Services
from ..job.snapshots import Snapshots
from ..job.states import StopReason
from ..job.telemetry.metrics import AgentState, WorkerMetrics
from ..pool.pool import RunnerPool
from ..presence.catalogue import PublishedCatalogue
from ..presence.control import ControlLine
from ..presence.record import NotOurs, Registry
from ..settings import WorkerSettings
from ..sources.own_flows import OwnFlows
from ..wheels.home import WheelHome
from ..wheels.sync import SyncedWheels
from .jobs_in_hand import JobsInHand
from .offered_jobs import OfferedJobs
from .prerequisites import Prerequisites

logger = logging.getLogger(__name__)

_KEEP_ALIVE_INTERVAL_SECONDS = 0.2
_OUTAGE_PAUSE_SECONDS = 0.25
# Handing back takes two NATS requests; during an outage the jobs are redelivered after AckWait instead.
_HAND_BACK_TIMEOUT_SECONDS = 5.0


class Agent:
    def __init__(
        self,
        settings: WorkerSettings,
        link: NatsLink,
        runs_dir: Path,
        metrics: WorkerMetrics,
        own_flows: OwnFlows,
        wheel_home: WheelHome | None = None,
    ) -> None:
        self._settings = settings
        self._link = link
        self._stopping = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._stopped_by: signal.Signals | NotOurs | None = None
        self._runners_ready = asyncio.Event()
        # How many jobs were accepted from other workers, or are about to come from them.
        self._taken_over = 0
        # Jobs may be pulled; not set while the worker is drained.
        self._resumed = asyncio.Event()
        self._resumed.set()

        flows_dir = settings.find_flows_dir()
        setup = Setup(
            settings.flow_resolver,
            str(flows_dir) if flows_dir is not None else None,
            str(runs_dir),
            callable_allow=settings.workflow_callable_allow,
            env_allow=settings.workflow_env_allow,
            wheel_paths=None if wheel_home is None else [],
            memory_max_bytes=settings.run_memory_limit_bytes,
        )
        wheels = NO_WHEELS if wheel_home is None else wheel_home.left
        self._pool = RunnerPool(setup, settings.slots, wheels, start=settings.runner_start)
        # A restarted worker keeps its worker id and gets another instance id.
        instance_id = uuid.uuid4().hex
        self._offered = OfferedJobs(on_released=self._pool.changed.set)
        self._own_flows = own_flows
        self._registry = Registry(
            link,
            settings,
            instance_id=instance_id,
            flows=lambda: self._pool.flows,
            flows_error=lambda: self._pool.flows_error,
        )
        self._registry.on_lost = self._give_up
        self._registry.on_draining = self._follow_draining
        self._catalogue = PublishedCatalogue(link, settings, self._pool, instance_id=instance_id)
        self._control = ControlLine(
            link,
            settings.control_subject(settings.worker_id),
            instance_id=instance_id,
            on_cancel=lambda run_id: self._jobs.look_at(run_id),
            on_record=lambda: self._jobs.spawn(self._registry.look()),
            on_job=self._take_over,
            handover_subjects=[settings.handover_subject(settings.worker_id, tag) for tag in settings.tags],
        )
        snapshots = Snapshots(
            link,
            settings.runs_kv_bucket,
            max_bytes=settings.max_run_snapshot_bytes,
            on_write=metrics.snapshot_bytes.observe,
        )
        claims = Claims(
            snapshots=snapshots,
            settings=settings,
            instance_id=instance_id,
            stopping=self._stopping,
            wheels_in_force=lambda: self._pool.wheels.in_use,
            on_conflict=metrics.claim_conflicts.inc,
        )
        self._puller = Puller(
            link, stream=settings.work_stream, durables=[settings.work_durable(tag) for tag in settings.tags]
        )
        self._prerequisites = Prerequisites(link, settings)
        link.after_connect(self._prerequisites.wait_for_registry)
        link.after_connect(self._register)
        link.after_connect(self._prerequisites.wait_for_queues)
        link.after_connect(self._catalogue.publish_missing)
        link.after_connect(self._puller.start)
        self._wheels: SyncedWheels | None = None
        if wheel_home is not None:
            self._wheels = SyncedWheels(
                link, settings, wheel_home, self._pool, on_state=self._registry.wheels_synced, stopping=self._stopping
            )
            link.after_connect(self._wheels.listen)
        declining = self._declining = Declining(
            link,
            settings,
            self._pool,
            wheels=self._wheels,
            is_answered=lambda: self._catalogue.is_known,
            loaded_at=lambda: self._catalogue.loaded_at,
        )
        services = Services(
            link, settings, claims, declining, self._pool, self._registry, runs_dir, metrics, self._wheels
        )
        answers = Answers(link, settings)
        self._jobs = JobsInHand(services, answers, InvalidJobs(settings, snapshots, answers, metrics))
        metrics.registry.register(AgentState(settings.slots, self._pool, self._registry, self._wheels))

    async def run(self) -> signal.Signals:
        """Work until SIGTERM or SIGINT, and return that signal.

        Raises RunnersUnusable if no runner can be started, NotOurs if another living worker has this worker id.
        """
        orphans.adopt()
        keep_private()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        # Under nohup the worker outlives its terminal.
        ends_with_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup, ends_with_terminal)
        starting = asyncio.create_task(self._start_runners())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            # A signal may stop the worker before its first runner is ready.
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                self._runners_ready.set()
                await self._work_until_stopping()
        finally:
            starting.cancel()
            stopping.cancel()
            await self._own_flows.stop()
            await self._pool.stop()
        assert self._stopped_by is not None
        if isinstance(self._stopped_by, NotOurs):
            raise self._stopped_by
        return self._stopped_by

    async def _start_runners(self) -> None:
        await self._own_flows.begin(self._pool)
        await self._pool.start()

    async def _work_until_stopping(self) -> None:
        logger.info(
            "worker %s starts with %d slots for tags %s",
            self._settings.worker_id,
            self._settings.slots,
            ", ".join(self._settings.tags),
            extra={"event": LogEvent.WORKER_STARTED},
        )
        pulling = asyncio.create_task(_restarting("pulling jobs", self._pull))
        keeping = [
            asyncio.create_task(_restarting("keeping runs alive", self._keep_runs_alive)),
            asyncio.create_task(_restarting("keeping the registry record", self._registry.keep)),
            asyncio.create_task(_restarting("publishing the catalogue of flows", self._catalogue.keep)),
            asyncio.create_task(_restarting("reloading flows", self._keep_flows)),
        ]
        if self._wheels is not None:
            keeping.append(asyncio.create_task(_restarting("syncing wheels", self._wheels.keep)))
        try:
            await self._stopping.wait()
            pulling.cancel()
            await asyncio.gather(pulling, return_exceptions=True)
            await self._puller.stop()
            await self._finish_or_hand_back()
        finally:
            for task in (pulling, *keeping, *self._jobs.working):
                task.cancel()
            await asyncio.gather(pulling, *keeping, *self._jobs.working, return_exceptions=True)
        if self._link.down_because is None:
            await self._registry.record_stop()
        logger.info("worker %s has stopped", self._settings.worker_id, extra={"event": LogEvent.WORKER_STOPPED})

    async def _keep_flows(self) -> None:
        await self._own_flows.keep(self._pool, self._registry.flows_changed)

    async def _finish_or_hand_back(self) -> None:
        grace = self._settings.worker_stop_grace_sec
        logger.info("stopping; %d runs in hand may go on for %g s", len(self._jobs), grace)
        for execution in self._jobs:
            execution.give_up_declined()
        stop_now = asyncio.create_task(self._stop_now.wait())
        deadline = time.monotonic() + grace
        while self._jobs.working and not stop_now.done() and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait({*self._jobs.working, stop_now}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        stop_now.cancel()
        for execution in self._jobs:
            execution.stop(StopReason.STOPPING)
        if self._jobs.working:
            await asyncio.wait(self._jobs.working, timeout=_HAND_BACK_TIMEOUT_SECONDS)

    def _follow_draining(self, is_wanted: bool) -> None:
        if is_wanted:
            about = {"event": LogEvent.WORKER_DRAINING}
            logger.info("draining: what has begun goes on, nothing new is taken", extra=about)
            self._resumed.clear()
            self._jobs.spawn(self._give_back_unbegun())
        else:
            logger.info("draining is over: jobs are taken again", extra={"event": LogEvent.WORKER_RESUMED})
            self._resumed.set()

    async def _give_back_unbegun(self) -> None:
        """End the pull that is under way, and hand back the runs that no runner has begun."""
        await self._puller.stop()
        for execution in self._jobs:
            execution.step_back()

    async def _pull(self) -> None:
        pool = self._pool
        more_queued = False
        if self._wheels is not None:
            await self._wheels.has_begun.wait()
        while not self._stopping.is_set():
            await self._resumed.wait()
            if (pause := self._jobs.declining_pace.seconds_left(now=time.monotonic())) > 0:
                await self._puller.stop()
                await asyncio.sleep(pause)
                continue
            pool.changed.clear()
            free = pool.size - self._in_hand
            ahead = pool.jobs_ahead
            if free + ahead > 0 and (offer := self._offered.take()) is not None:
                self._jobs.spawn(self._declining.want(offer))
                continue
            taken_over = self._taken_over
            try:
                if free > 0:
                    messages = await self._puller.take(free)
                elif more_queued and 2 * (free + ahead) > ahead:
                    # Does not wait for new jobs: those should go to a worker with a free runner.
                    messages = await self._puller.take_now(free + ahead)
                else:
                    await pool.changed.wait()
                    continue
            except NatsUnavailable:
                await asyncio.sleep(_OUTAGE_PAUSE_SECONDS)
                continue
            # No await from here on, so that a cancel cannot lose messages that were taken.
            deliveries = [Delivery.of(msg) for msg in messages]
            more_queued = bool(deliveries) and deliveries[-1].num_pending > 0
            if deliveries and logger.isEnabledFor(logging.DEBUG):
                # Queues have no priorities: all of this worker's are pulled alike.
                meta = {"queue": ",".join(self._settings.tags), "priority": 0, "leased_count": len(deliveries)}
                about = {"event": LogEvent.SCHEDULER, "meta": meta}
                logger.debug("%d jobs taken", len(deliveries), extra=about)
            room = len(deliveries)
            if self._taken_over != taken_over:
                # Jobs of other workers have come while this waited.
                room = max(pool.size + ahead - self._in_hand, 0)
            for delivery in deliveries[:room]:
                self._jobs.accept(delivery)
            for delivery in deliveries[room:]:
                self._jobs.refuse(delivery)

    @property
    def _in_hand(self) -> int:
        """Jobs that have a runner or are to have one, those that are about to come from other workers included."""
        return self._offered.runners_kept + self._jobs.count_with_runner

    def _take_over(self, about: Control) -> bytes:
        """Answer the offer of a job that another worker has declined, or accept the job, if a runner is free."""
        ack_subject = about.ack_subject if about.offer is None else about.offer.ack_subject
        if ack_subject is None or self._stopping.is_set() or not self._resumed.is_set():
            return JOB_REFUSED
        self._offered.forget(ack_subject)
        has_room = self._in_hand < self._pool.size + self._pool.jobs_ahead
        self._taken_over += has_room
        if about.offer is not None:
            return self._offered.answer(about.offer, seconds=about.offered_seconds or 0.0, has_room=has_room)
        if (job := about.job) is None or not has_room:
            return JOB_REFUSED
        subject, often = self._settings.work_subject(job.tag), about.num_delivered or 1
        self._jobs.accept(Delivery.handed_over(job, subject=subject, reply=ack_subject, num_delivered=often))
        return JOB_TAKEN

    async def _keep_runs_alive(self) -> None:
        while True:
            # AckWait may be too short for the configured interval: another program may have made the queue.
            ack_wait = self._prerequisites.ack_wait_seconds
            often = min(self._settings.ack_progress_interval_sec, ack_wait / 2)
            self._jobs.keep_alive(often, ack_wait_seconds=ack_wait)
            await asyncio.sleep(_KEEP_ALIVE_INTERVAL_SECONDS)

    async def _register(self) -> None:
        """Write the registry record once the first runner is ready; check it again after a reconnect."""
        try:
            await self._registry.introduce(self._control)
            await self._runners_ready.wait()
            # First: runs-api is to know what a worker offers as soon as it counts as alive.
            await self._catalogue.publish()
            await self._registry.claim()
        except NotOurs as error:
            self._give_up(error)

    def _give_up(self, why: NotOurs) -> None:
        """Hand back everything and stop: two workers must not share one worker id."""
        logger.error("%s", why, extra={"event": LogEvent.WORKER_ID_TAKEN})
        self._stopped_by = why
        self._stop_now.set()
        self._stopping.set()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            self._stop_now.set()
        else:
            self._stopped_by = number
            self._stopping.set()

    def _on_hangup(self, ends_with_terminal: bool) -> None:
        """SIGHUP asks for a reload; but the closed terminal of a worker that was started there ends it."""
        if ends_with_terminal and not has_terminal():
            self._on_signal(signal.SIGHUP)
        else:
            self._own_flows.ask()


async def _restarting(what: str, loop: Callable[[], Awaitable[None]]) -> None:
    """Run a loop again when it fails: one unexpected exception must not stop the worker."""
    while True:
        try:
            await loop()
        except Exception:
            logger.exception("%s broke off and starts again", what)
        await asyncio.sleep(1.0)

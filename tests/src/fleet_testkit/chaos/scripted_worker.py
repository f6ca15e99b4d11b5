"""A worker without runner processes: its own claims, lease, execution and answers, moved step by step by a test."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fleet_contracts.control import Control
from fleet_contracts.dead_letter import DeadLetterReason
from fleet_contracts.job import Job
from fleet_contracts.status import RunStatus
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.pull import Puller
from fleet_worker.boundary.flow_version import FlowVersion
from fleet_worker.boundary.frames import Conclusion, Progress, Run, Setup
from fleet_worker.job import claims as claims_module
from fleet_worker.job.answers import Answers
from fleet_worker.job.claims import Claims
from fleet_worker.job.declining import Declining
from fleet_worker.job.delivery import Delivery
from fleet_worker.job.disposition import Outcome
from fleet_worker.job.execution import Execution
from fleet_worker.job.services import Services
from fleet_worker.job.snapshots import Snapshots
from fleet_worker.job.states import StopReason
from fleet_worker.pool.pool import RunnerPool
from fleet_worker.pool.runner_process import RunnerDied, RunnerProcess
from fleet_worker.presence.record import Registry
from fleet_worker.settings import WorkerSettings

# How long a step waits for a job, or for the decision about one, before it lets others act.
_STEP_SECONDS = 0.05


class ScriptedRunner:
    """Takes the place of a runner process: its run ends when the test says so."""

    def __init__(self, *, obeys_cancel: bool, begun: set[str]) -> None:
        self.version = FlowVersion()
        self.wheels = self.version.wheels
        self.is_spent = False
        self.died = asyncio.Event()
        self.started = asyncio.Event()
        self._obeys_cancel = obeys_cancel
        self._begun = begun
        self._done: asyncio.Future[Conclusion] = asyncio.get_running_loop().create_future()

    async def run(self, run: Run, _on_progress: Callable[[Progress], None]) -> Conclusion:
        self._begun.add(run.run_id)
        self.started.set()
        return await self._done

    def cancel(self, _run_id: str) -> None:
        if self._obeys_cancel:
            self.end(RunStatus.CANCELLED)

    def kill(self) -> None:
        self.died.set()
        if not self._done.done():
            self._done.set_exception(RunnerDied(-9))
            self._done.exception()  # nobody may be waiting; asking marks it as seen

    def end(self, status: RunStatus) -> None:
        if not self._done.done():
            failed = status is RunStatus.FAILED
            error = "ValueError: as scripted" if failed else None
            reason = DeadLetterReason.EXECUTION_ERROR if failed else None
            self._done.set_result(Conclusion(status, error, reason, tasks={}, task_records={}, flow_failed=failed))


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a run as its worker reports it."""

    run_id: str
    attempt: int | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Held:
    execution: Execution
    runner: ScriptedRunner


class ScriptedWorker:
    """One worker of a tag. It does nothing by itself: every pull, heartbeat and end is a call."""

    def __init__(self, link: NatsLink, settings: WorkerSettings, runs_dir: Path) -> None:
        self._link = link
        self._settings = settings
        self._runs_dir = runs_dir
        self._answers = Answers(link, settings)
        durables = [settings.work_durable(tag) for tag in settings.tags]
        self._puller = Puller(link, stream=settings.work_stream, durables=durables, expires_seconds=_STEP_SECONDS)
        self._control: Subscription | None = None
        self._held: dict[str, _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._services = self._new_instance()
        self.reports: list[Report] = []
        # Every run that was ever executed, also those that the fleet does not know of.
        self.begun: set[str] = set()

    async def open(self) -> None:
        await self._puller.start()
        subject = self._settings.control_subject(self._settings.worker_id)
        self._control = await self._link.client.subscribe(subject, cb=self._on_control)

    async def close(self) -> None:
        await self.kill()
        await self._puller.stop()
        if self._control is not None:
            await self._control.unsubscribe()

    @property
    def held(self) -> list[str]:
        return list(self._held)

    async def take(self, *, obeys_cancel: bool = True) -> None:
        """Pull a job and wait until it is claimed or answered; a decision that takes longer goes on alone."""
        for msg in await self._puller.take(1):
            runner = ScriptedRunner(obeys_cancel=obeys_cancel, begun=self.begun)
            working = self._spawn(self._work(msg, runner))
            started = asyncio.create_task(runner.started.wait())
            await asyncio.wait({working, started}, timeout=_STEP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            started.cancel()

    async def keep_alive(self) -> None:
        """Do the periodic work of an agent for the runs that it holds: acks, heartbeats, overdue cancels."""
        await asyncio.gather(
            *(held.execution.keep_alive(0.0, ack_wait_seconds=30.0) for held in list(self._held.values()))
        )

    async def end(self, status: RunStatus) -> None:
        """The run that was taken first ends."""
        await self._move(lambda held: held.runner.end(status))

    async def crash(self) -> None:
        """The runner dies in mid-run."""
        await self._move(lambda held: held.runner.kill())

    async def stop(self) -> None:
        """The worker stops in order and gives back what it holds."""
        for held in self._held.values():
            held.execution.stop(StopReason.STOPPING)
        await self._settled()

    async def kill(self) -> None:
        """Kill -9, and a new instance under the same name: deliveries and writes under way are left as they are."""
        tasks, self._tasks = self._tasks, set()
        self._held = {}
        self._services = self._new_instance()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _new_instance(self) -> Services:
        instance_id = uuid.uuid4().hex
        settings = self._settings
        snapshots = Snapshots(self._link, settings.runs_kv_bucket, max_bytes=settings.max_run_snapshot_bytes)
        pool = RunnerPool(Setup(None, None, str(self._runs_dir)), slots=1)  # never started
        return Services(
            link=self._link,
            settings=settings,
            claims=Claims(snapshots=snapshots, settings=settings, instance_id=instance_id, stopping=asyncio.Event()),
            declining=Declining(self._link, settings, pool),
            pool=pool,
            registry=Registry(self._link, settings, instance_id=instance_id),
            runs_dir=self._runs_dir,
        )

    async def _work(self, msg: Msg, runner: ScriptedRunner) -> None:
        """As the agent does it."""
        delivery = Delivery.of(msg)
        job = Job.decode(delivery.data)
        mine = self._held
        if (held := mine.get(job.run_id)) is not None:
            held.execution.also_answers(delivery)
            return
        pool = RunnerPool(Setup(None, None, str(self._runs_dir)), slots=1)  # never started
        runner.version = pool.version
        pool.give_back(cast(RunnerProcess, runner))
        execution = Execution(replace(self._services, pool=pool), job, delivery)
        mine[job.run_id] = _Held(execution, runner)
        try:
            outcome = await execution.run()
            self.reports.append(Report(job.run_id, execution.attempt, outcome))
            await self._answers.give(outcome, execution.deliveries, job=job, snapshot=execution.snapshot)
        finally:
            del mine[job.run_id]

    async def _move(self, how: Callable[[_Held], None]) -> None:
        for held in self._held.values():
            if held.runner.started.is_set():
                how(held)
                break
        await self._settled()

    async def _settled(self) -> None:
        """Let what was set in motion go on for a moment."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STEP_SECONDS, return_when=asyncio.FIRST_COMPLETED)

    async def _on_control(self, msg: Msg) -> None:
        if (held := self._held.get(Control.decode(msg.data).run_id or "")) is not None:
            self._spawn(held.execution.look())

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


@contextmanager
def short_claim_delays() -> Iterator[None]:
    """Shorten the delays of claims, which are made for machines far apart."""
    names = {"_HELD_RETRY_SECONDS": 0.3, "_LOOK_INTERVAL_SECONDS": 0.05}
    before = {name: getattr(claims_module, name) for name in names}
    for name, seconds in names.items():
        setattr(claims_module, name, seconds)
    yield
    for name, seconds in before.items():
        setattr(claims_module, name, seconds)

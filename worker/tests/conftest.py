"""The server's side of a run, played by the test, and real `pyoco-worker` processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from nats.js.errors import NotFoundError

from fleet_contracts.dead_letter import DeadLetter
from fleet_contracts.events import RunEvent, RunEvents
from fleet_contracts.job import Job
from fleet_contracts.names import ConsumerDefaults
from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.worker_record import WorkerRecord
from fleet_kit.nats.link import NatsLink
from fleet_testkit.buckets import Bucket
from fleet_testkit.log_check import check_log_lines
from fleet_testkit.nats_resources import make_all
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.programs import Program
from fleet_testkit.snapshots import change_snapshot, read_snapshot
from fleet_testkit.waiting import eventually, wait_until
from fleet_worker.settings import WorkerSettings

FLOWS = Path(__file__).parent / "flows"
# Quick where the defaults are made for machines far apart.
QUICK = {
    "PYOCO_NAK_DELAY_SEC": "0.2",
    "PYOCO_RUN_HEARTBEAT_INTERVAL_SEC": "0.3",
    "PYOCO_RUN_LOST_AFTER_SEC": "1.5",
    "PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC": "0.5",
    "PYOCO_ACK_PROGRESS_INTERVAL_SEC": "0.5",
}
CONSUMERS = ConsumerDefaults(consumer_ack_wait_sec=2.0)


@pytest.fixture
def own_modules() -> Iterator[None]:
    """What the test imports, and where from, is forgotten afterwards."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


class Desk:
    """What runs-api does for a run: writes its snapshot, queues its job, looks at what became of it."""

    def __init__(self, link: NatsLink, settings: WorkerSettings) -> None:
        self.link = link
        self.settings = settings
        self.runs = Bucket(link, settings.runs_kv_bucket)
        self.workers = Bucket(link, settings.workers_kv_bucket)

    async def prepare(self) -> None:
        """Make what a worker finds, with the tags that the tests use."""
        await make_all(self.link.jetstream, self.settings, tags=["default", "cpu", "gpu"], consumers=CONSUMERS)

    async def submit(self, flow_name: str, *, run_id: str | None = None, tag: str = "default", **params: Any) -> str:
        job = self.job(flow_name, run_id=run_id, tag=tag, **params)
        await self.runs.create(job.run_id, RunSnapshot.pending(job, now=time.time()).encode())
        await self.queue(job)
        return job.run_id

    def job(self, flow_name: str, *, run_id: str | None = None, tag: str = "default", **params: Any) -> Job:
        run_id = run_id or str(uuid.uuid4())
        return Job(run_id=run_id, flow_name=flow_name, tag=tag, tags=[tag], params=params, submitted_at=time.time())

    async def queue(self, job: Job) -> None:
        await self.link.publish(self.settings.work_subject(job.tag), job.encode())

    async def snapshot(self, run_id: str) -> RunSnapshot:
        return await read_snapshot(self.runs, run_id)

    async def change(self, run_id: str, change: Callable[[RunSnapshot], RunSnapshot]) -> int:
        return await change_snapshot(self.runs, run_id, change)

    async def wait_for(
        self, run_id: str, condition: Callable[[RunSnapshot], Any], *, what: str, within: float = 60.0
    ) -> RunSnapshot:
        return await eventually(lambda: self.snapshot(run_id), until=condition, within=within, what=what)

    async def wait_ended(self, run_id: str, *, within: float = 60.0) -> RunSnapshot:
        return await self.wait_for(run_id, lambda s: s.is_terminal, what="the run's end", within=within)

    async def wait_running(self, run_id: str) -> RunSnapshot:
        """The run is being executed, and its first task has said so."""
        return await self.wait_for(
            run_id, lambda s: s.status is RunStatus.RUNNING and "RUNNING" in s.tasks.values(), what="a running task"
        )

    async def wait_queue_empty(self) -> None:
        async def is_empty() -> bool:
            info = await self.link.jetstream.stream_info(self.settings.work_stream)
            return info.state.messages == 0

        await eventually(is_empty, what="an empty work queue")

    async def dead_letters(self) -> list[DeadLetter]:
        return [DeadLetter.decode(data) for data in await self._stored(self.settings.dlq_stream)]

    async def events(self, run_id: str) -> list[RunEvents]:
        batches = [RunEvents.decode(data) for data in await self._stored(self.settings.events_stream)]
        return [batch for batch in batches if batch.run_id == run_id]

    async def output(self, run_id: str) -> list[RunEvent]:
        return [event for batch in await self.events(run_id) for event in batch.events if event.kind == "log"]

    async def worker_record(self, worker_id: str) -> WorkerRecord | None:
        entry = await self.workers.get(worker_id)
        return None if entry is None else WorkerRecord.decode(entry.value)

    async def _stored(self, stream: str) -> list[bytes]:
        js = self.link.jetstream
        state = (await js.stream_info(stream)).state
        found = []
        for sequence in range(max(state.first_seq, 1), state.last_seq + 1):
            try:
                found.append((await js.get_msg(stream, sequence)).data or b"")
            except NotFoundError:
                continue
        return found


class WorkerProcess:
    """A `pyoco-worker` of its own, with its log in a file."""

    def __init__(
        self,
        folder: Path,
        server: NatsServer,
        worker_id: str,
        *options: str,
        flows_dir: str = str(FLOWS),
        refuses_to_start: bool = False,
        python: str | None = None,
        user: str | None = None,
        **env: str,
    ) -> None:
        self.worker_id = worker_id
        # What a command says to people before it begins to log is no line of JSON.
        self.refuses_to_start = refuses_to_start
        self.scratch = folder / f"{worker_id}-scratch"
        self._log_file = folder / f"{worker_id}-{uuid.uuid4().hex[:6]}.log"
        arguments = ["--nats-url", server.url, "--worker-id", worker_id, "--slots", "1"]
        arguments += [*(["--flows-dir", flows_dir] if flows_dir else []), *options]
        env = {**os.environ, "PYOCO_LOAD_DOTENV": "0", "PYOCO_WORKER_DIR": str(self.scratch), **QUICK, **env}
        self.process: Program | subprocess.Popen[bytes]
        with self._log_file.open("wb") as log:
            if python is None:
                command = ["fleet_worker.cli:main", *arguments]
                self.process = Program(command, env=env, stdout=log, stderr=log, folder=folder)
            else:
                command = [python, "-c", "from fleet_worker.cli import main; main()", *arguments]
                # Another user cannot enter the folders of pytest.
                place = folder if user is None else Path("/")
                self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=place, user=user)

    @property
    def log(self) -> str:
        return self._log_file.read_text()

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    def check_log(self) -> None:
        """All that it has written are lines of the contract: a traceback that nobody logged is none."""
        check_log_lines(self.log.split("\n")[:-1], of=self.worker_id)

    def runners(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def run_folders(self) -> list[str]:
        runs = self.scratch / "runs"
        return sorted(child.name for child in runs.iterdir()) if runs.exists() else []

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=30)

    def stop(self, number: signal.Signals = signal.SIGTERM, *, within: float = 60.0) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=within)


@pytest.fixture
async def desk(nats_server: NatsServer) -> AsyncIterator[Desk]:
    settings = WorkerSettings(nats_url=nats_server.url, ack_progress_interval_sec=0.5)
    async with NatsLink(settings, name="desk") as link:
        desk = Desk(link, settings)
        link.after_connect(desk.prepare)
        async with asyncio.timeout(20):
            await link.wait_ready()
        yield desk


@pytest.fixture
def start_worker(tmp_path: Path, nats_server: NatsServer) -> Iterator[Callable[..., WorkerProcess]]:
    """Start workers; whatever is left of them at the end of the test is killed, and must be gone with its runners."""
    started: list[WorkerProcess] = []

    def start(worker_id: str = "w1", *options: str, **env: Any) -> WorkerProcess:
        worker = WorkerProcess(tmp_path, nats_server, worker_id, *options, **env)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        runners = worker.runners() if worker.process.poll() is None else []
        if worker.process.poll() is None:
            worker.kill()
        wait_until(lambda left=runners: not any(r.is_running() and r.status() != "zombie" for r in left))
        if not worker.refuses_to_start:
            worker.check_log()

"""A ledger of the test's own on SQLite and on PostgreSQL, and the whole service on a real NATS."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from nats.js.errors import NotFoundError
from sqlalchemy import text

from fleet_contracts.job import Job
from fleet_contracts.messages import MalformedMessage
from fleet_contracts.snapshot import RunSnapshot
from fleet_kit.errors import NatsUnavailable
from fleet_kit.nats.link import NatsLink
from fleet_kit.nats.messages import stored_message
from fleet_runs_api.accept.acceptance import Acceptance
from fleet_runs_api.accept.idempotency import KeyUse
from fleet_runs_api.ledger.documents import NewRun
from fleet_runs_api.ledger.sql.database import Database
from fleet_runs_api.ledger.sql.transaction import Transaction
from fleet_runs_api.main import build
from fleet_runs_api.settings import RunsSettings
from fleet_testkit.apps import ANONYMOUS, ServiceProcess, running, until_ready
from fleet_testkit.buckets import Bucket
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.snapshots import change_snapshot, read_snapshot
from fleet_testkit.waiting import eventually


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path}/runs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    database = Database(url)
    database.migrate()
    yield database
    database.dispose()


@contextmanager
def writing(database: Database) -> Iterator[Transaction]:
    """A transaction of the test's own, outside of the group commit."""
    with database.writer.connect() as connection, Transaction.on(connection) as transaction:
        yield transaction


@pytest.fixture(scope="module")
def process_settings() -> dict[str, str]:
    """Settings of the service's process; a module may have a fixture of this name with its own."""
    return {}


def _runs_process(nats_server: NatsServer, folder: Path, settings: dict[str, str]) -> ServiceProcess:
    ledger = f"sqlite:///{folder}/runs.db"
    return ServiceProcess(
        "fleet_runs_api", folder, PYOCO_NATS_URL=nats_server.url, PYOCO_RUNS_DATABASE_URL=ledger, **settings
    )


@pytest.fixture(scope="module")
def runs_process(
    tmp_path_factory: pytest.TempPathFactory, process_settings: dict[str, str]
) -> Iterator[ServiceProcess]:
    """The real process, one for all tests of a module: each looks at runs of its own only."""
    folder = tmp_path_factory.mktemp("runs-api")
    with NatsServer(folder / "nats").running() as server:
        service = _runs_process(server, folder, process_settings)
        with service.standing():
            yield service


@pytest.fixture
def own_runs_process(
    nats_server: NatsServer, tmp_path: Path, process_settings: dict[str, str]
) -> Iterator[ServiceProcess]:
    """For a test that breaks its NATS."""
    service = _runs_process(nats_server, tmp_path, process_settings)
    with service.standing():
        yield service


class RunsUnderTest:
    """The service in this process, a client with the anonymous identity, and a second look at NATS and SQL."""

    def __init__(self, app: FastAPI, client: httpx.AsyncClient, link: NatsLink, database: Database) -> None:
        self.app = app
        self.client = client
        self.link = link
        self.database = database
        self.runs = Bucket(link, "pyoco_runs")

    async def submit(self, flow: str = "hello", **more: Any) -> str:
        answer = await self.client.post("/runs", json={"flow_name": flow, **more})
        assert answer.status_code == 200, answer.text
        run_id: str = answer.json()["run_id"]
        return run_id

    async def snapshot(self, run_id: str) -> RunSnapshot:
        return await read_snapshot(self.runs, run_id)

    async def change(self, run_id: str, change: Callable[[RunSnapshot], RunSnapshot]) -> int:
        """Write a snapshot as a worker would."""
        return await change_snapshot(self.runs, run_id, change)

    async def claim(self, run_id: str, *, ack_subject: str | None = None, worker_id: str = "w1") -> int:
        return await self.change(
            run_id,
            lambda s: s.claim(worker_id=worker_id, worker_instance_id="i1", ack_subject=ack_subject, now=time.time()),
        )

    async def listed(self, run_id: str) -> dict[str, Any]:
        for item in (await self.client.get("/runs", params={"limit": 200})).json():
            if item["run_id"] == run_id:
                return dict(item)
        return {}

    async def until_listed(self, run_id: str, **wanted: Any) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            item = await self.listed(run_id)
            return item if all(item.get(name) == value for name, value in wanted.items()) else None

        found = await eventually(look, within=30, what=f"the ledger showing {wanted}")
        assert found
        return found

    def rows(self, sql: str) -> list[Any]:
        return list(self.database.read(lambda connection: connection.execute(text(sql)).all()))

    async def jobs(self) -> list[str]:
        """The run ids of the jobs in the work stream; none while NATS is away."""
        try:
            return await self._jobs()
        except (NatsUnavailable, NotFoundError):
            return []

    async def found(self, run_id: str) -> RunSnapshot | None:
        """The run's snapshot; None while there is none, or NATS is away."""
        try:
            entry = await self.runs.get(run_id)
        except NatsUnavailable:
            return None
        return RunSnapshot.decode(entry.value) if entry else None

    async def readable(self, run_id: str) -> RunSnapshot | None:
        try:
            return await self.found(run_id)
        except MalformedMessage:
            return None

    async def _jobs(self) -> list[str]:
        state = (await self.link.stream_info("PYOCO_WORK")).state
        ids = []
        for sequence in range(max(state.first_seq, 1), state.last_seq + 1):
            message = await stored_message(self.link, "PYOCO_WORK", sequence)
            if message is not None:
                ids.append(Job.decode(message.data).run_id)
        return ids


def runs_settings(nats_server: NatsServer, tmp_path: Path, **more: Any) -> RunsSettings:
    given: dict[str, Any] = {
        "nats_url": nats_server.url,
        "runs_database_url": f"sqlite:///{tmp_path}/service.db",
        "sweep_interval_sec": 0.1,
        "run_lost_after_sec": 0.6,
        "run_check_interval_sec": 0.5,
        "max_run_snapshot_bytes": 65536,
    }
    return RunsSettings(**(given | more))


@asynccontextmanager
async def runs_running(settings: RunsSettings) -> AsyncIterator[RunsUnderTest]:
    app = build(settings)
    database = Database(settings.runs_database_url)
    async with running(app) as client, NatsLink(settings, name="test") as link:
        client.headers.update(ANONYMOUS)
        await until_ready(client)
        async with asyncio.timeout(30):
            await link.wait_ready()
        yield RunsUnderTest(app, client, link, database)
    database.dispose()


@pytest.fixture
def new_run() -> NewRun:
    job = Job(run_id=str(uuid.uuid4()), flow_name="hello", tag="default", submitted_at=time.time())
    return NewRun.of(job)


def accepting(*runs: NewRun, key: KeyUse | None = None) -> Acceptance:
    """The relay may send the runs a minute after their submit."""
    return Acceptance(runs, time.time() + 60, key)


@pytest.fixture
async def service(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[RunsUnderTest]:
    async with runs_running(runs_settings(nats_server, tmp_path)) as service:
        yield service

"""While the database is away the service says so, now and then and in a few words, however often it asks for it."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
from sqlalchemy import make_url

from fleet_contracts.dead_letter import DeadLetter, DeadLetterReason
from fleet_runs_api.main import build
from fleet_testkit.apps import running, until_ready
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest, runs_running, runs_settings

LOOPS = ("fold.ingest", "dead_letters.arrivals", "dispatch.relay", "repair.sweeper", "repair.retention")


@contextmanager
def database_closed(server: str, url: str) -> Iterator[None]:
    """Nobody gets in any more, and every connection is cut."""
    name = make_url(url).database
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')


async def make_work(service: RunsUnderTest, run_id: str) -> None:
    """Something to fold in, and something to take in."""
    await service.change(run_id, lambda snapshot: snapshot.model_copy(update={"heartbeat_at": time.time()}))
    letter = DeadLetter(timestamp=time.time(), reason=DeadLetterReason.INVALID_JOB, error="no job")
    await service.link.publish("pyoco.dlq.default", letter.encode())


async def test_every_loop_logs_an_outage_once_and_without_a_traceback(
    nats_server: NatsServer,
    postgres_server: str,
    postgres_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = runs_settings(nats_server, tmp_path, runs_database_url=postgres_url, runs_kv_retention_sec=1.0)
    async with runs_running(settings) as service:
        run_id = await service.submit()
        await service.claim(run_id)
        # Else the relay had that to complain of, too.
        await eventually(lambda: service.rows("SELECT * FROM outbox") == [], what="the dispatch noted")
        caplog.clear()
        caplog.set_level(logging.DEBUG, "fleet_runs_api")

        def logged_by(loop: str) -> list[logging.LogRecord]:
            lines = [record for record in caplog.records if record.name == f"fleet_runs_api.{loop}"]
            return [record for record in lines if record.__dict__.get("exc_type") == "LedgerUnavailable"]

        async def all_have_met_with_it_again() -> bool:
            await make_work(service, run_id)
            return all(len(logged_by(loop)) >= 3 for loop in LOOPS)

        with database_closed(postgres_server, postgres_url):
            await eventually(all_have_met_with_it_again, within=30, what="three log lines of every loop")
            lines = {loop: logged_by(loop) for loop in LOOPS}
        assert not [record for record in caplog.records if record.exc_info]
        for loop, records in lines.items():
            assert [record.levelno for record in records].count(logging.WARNING) == 1, loop
            assert records[0].__dict__["meta"]["provider"] == "ledger"
            # The first one may be of a connection that was cut during its query.
            assert "is not currently accepting connections" in records[-1].getMessage()


async def test_opening_the_ledger_is_tried_again_whatever_kept_it_from_opening(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    settings = runs_settings(nats_server, tmp_path, runs_database_url=f"sqlite:///{folder}/ledger/runs.db")
    (folder / "ledger").write_text("a file where a folder is to be")
    async with running(build(settings)) as client:
        await eventually(lambda: says(client, "FileExistsError"), what="the reason in /ready")
        (folder / "ledger").unlink()
        await until_ready(client)


async def says(client: httpx.AsyncClient, reason: str) -> bool:
    return reason in (await client.get("/ready")).text

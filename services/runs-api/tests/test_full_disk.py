"""The ledger's disk is full: submits are refused with a sentence, reads go on, and a warning comes before."""

import logging
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from fleet_kit.files.disk import DiskLimits
from fleet_runs_api.ledger.sql import disk as ledger_disk
from fleet_runs_api.ledger.sql.disk import LedgerDisk
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.small_disk import CannotMount, SmallDisk, small_disk

from .conftest import runs_running, runs_settings

MIB = 1024 * 1024


@pytest.mark.parametrize("kept", [0, 4 * MIB])
async def test_submits_are_refused_while_the_disk_is_full_and_reads_go_on(
    nats_server: NatsServer, disk: SmallDisk, kept: int
) -> None:
    """With nothing kept back it is SQLite who finds out, in the middle of a commit."""
    settings = runs_settings(nats_server, disk.path, disk_free_min_bytes=kept)
    async with runs_running(settings) as service:
        run_id = await service.submit()
        assert (await service.client.get("/health")).json()["waiting_for"] == {}
        disk.fill(leave_bytes=kept // 2)
        refused = 0
        for _ in range(30):
            answer = await service.client.post("/runs", json={"flow_name": "hello", "params": {"text": "x" * 3000}})
            if answer.status_code == 200:
                continue  # the ledger's file has some pages left
            refused += 1
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "DEPENDENCY_ERROR"
            assert "no space left on the d" in answer.json()["detail"]
            assert answer.json()["detail"].endswith("free some and try again")
        assert refused > 20
        batch = await service.client.post("/runs/batch", json={"runs": [{"flow_name": "hello"}] * 50})
        assert batch.status_code == 503
        for path in ("/runs", f"/runs/{run_id}", f"/runs/{run_id}/attempts"):
            assert (await service.client.get(path)).status_code == 200, path
        if kept:
            health = (await service.client.get("/health")).json()
            assert health["status"] == "degraded"
            # The service itself may have written something meanwhile.
            assert re.fullmatch(
                r"[0-2] MiB are free on the data disk, 4 MiB are needed", health["waiting_for"]["disk"]
            )
            assert (await service.client.get("/ready")).status_code == 503
        free = next(
            float(line.split()[1])
            for line in (await service.client.get("/metrics")).text.splitlines()
            if line.startswith("pyoco_disk_free_bytes")
        )
        assert free == pytest.approx(disk.free_bytes, abs=MIB)
        disk.free()
        assert await service.submit() != run_id
        assert (await service.client.get("/ready")).status_code == 200


@pytest.fixture
def database_on_a_small_disk(postgres_server: str, postgres_url: str) -> Iterator[tuple[str, SmallDisk]]:
    """A PostgreSQL database whose tables come to lie on a disk that the test may fill."""
    name = make_url(postgres_url).database
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        [folder] = admin.execute("SELECT current_setting('data_directory')").fetchone() or [""]
        owner, place = Path(folder).stat(), Path(folder) / f"disk-of-{name}"
        try:
            with small_disk(place, mib=16) as disk:
                os.chown(place, owner.st_uid, owner.st_gid)
                admin.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
                admin.execute(f'ALTER DATABASE "{name}" SET TABLESPACE small')
                yield postgres_url, disk
                admin.execute(f'ALTER DATABASE "{name}" SET TABLESPACE pg_default')
                admin.execute("DROP TABLESPACE small")
        except CannotMount as error:
            pytest.skip(f"no disk can be mounted to be filled: {error}")


async def test_a_postgresql_whose_disk_is_full_is_answered_in_the_same_way(
    nats_server: NatsServer, database_on_a_small_disk: tuple[str, SmallDisk], tmp_path: Path
) -> None:
    url, disk = database_on_a_small_disk
    async with runs_running(runs_settings(nats_server, tmp_path, runs_database_url=url)) as service:
        run_id = await service.submit()
        disk.fill()
        full = "no space left on the disk of the ledger; free some and try again"
        refused = 0
        for _ in range(30):
            # Nothing that PostgreSQL could compress.
            params = {"text": secrets.token_hex(8000)}
            answer = await service.client.post("/runs", json={"flow_name": "hello", "params": params})
            if answer.status_code == 200:
                continue  # the tables have some pages left
            refused += 1
            assert (answer.status_code, answer.json()["detail"]) == (503, full)
            assert answer.json()["error"]["code"] == "DEPENDENCY_ERROR"
        assert refused > 20
        for path in ("/runs", f"/runs/{run_id}", f"/runs/{run_id}/attempts"):
            assert (await service.client.get(path)).status_code == 200, path
        disk.free()
        assert await service.submit() != run_id


def test_scarce_space_is_logged_once_and_then_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    disk = LedgerDisk(Path("/"), DiskLimits(disk_free_min_bytes=4 * MIB, disk_free_warn_bytes=8 * MIB))
    for moment, free in enumerate((9, 7, 6, 3, 2, 5, 9, 9)):
        monkeypatch.setattr(ledger_disk, "free_bytes", lambda _, free=free: free * MIB)
        disk.log_space(float(moment))
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "7 MiB are free on the data disk: below 4 MiB no new runs are accepted"),
        ("ERROR", "3 MiB are free on the data disk: no new runs are accepted until some is freed"),
        ("WARNING", "5 MiB are free on the data disk: below 4 MiB no new runs are accepted"),
        ("INFO", "9 MiB are free on the data disk: that is enough again"),
    ]
    monkeypatch.setattr(ledger_disk, "free_bytes", lambda _: 7 * MIB)
    for moment in (1000.0, 1500.0, 1700.0):
        disk.log_space(moment)
    assert len(caplog.records) == 6


def test_a_database_server_has_no_disk_here() -> None:
    disk = LedgerDisk(None, DiskLimits())
    disk.require()
    disk.log_space(0.0)
    assert disk.full_because is None

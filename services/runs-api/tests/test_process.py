"""The real process: starts on a socket, stops when told, refuses bad settings with a sentence."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fleet_testkit.apps import ANONYMOUS, ServiceProcess, until_ready
from fleet_testkit.nats_server import NatsServer


@pytest.mark.parametrize("ledger", ["sqlite", "postgresql"])
async def test_it_serves_on_a_socket_and_stops_when_told(
    nats_server: NatsServer, tmp_path: Path, ledger: str, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db" if ledger == "sqlite" else request.getfixturevalue("postgres_url")
    with tempfile.TemporaryDirectory(prefix="runs") as folder:
        service = ServiceProcess(
            "fleet_runs_api", Path(folder), PYOCO_NATS_URL=nats_server.url, PYOCO_RUNS_DATABASE_URL=url
        )
        service.start()
        try:
            async with service.client() as client:
                await until_ready(client, within=30)
                submitted = await client.post("/runs", json={"flow_name": "hello"}, headers=ANONYMOUS)
                assert submitted.status_code == 200
                run_id = submitted.json()["run_id"]
                assert (await client.get(f"/runs/{run_id}", headers=ANONYMOUS)).json()["status"] == "PENDING"
            service.terminate()
            service.exit_code(within=10)
            assert not service.socket.exists()
        finally:
            service.kill()


def test_an_invalid_setting_is_refused_with_its_name_its_value_and_what_is_allowed() -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "fleet_runs_api"],
        env={**os.environ, "PYOCO_RUNS_DATABASE_URL": "mysql://x", "PYOCO_SWEEP_INTERVAL_SEC": "soon"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert outcome.returncode == 1
    assert "PYOCO_RUNS_DATABASE_URL='mysql://x' is not allowed" in outcome.stderr
    assert "PYOCO_SWEEP_INTERVAL_SEC='soon' is not allowed: input should be a valid number" in outcome.stderr
    assert "Traceback" not in outcome.stderr

"""runs-api as a process: it starts on a unix socket, stops on a signal, and refuses bad settings."""

from pathlib import Path

import pytest

from fleet_testkit.apps import ANONYMOUS, ServiceProcess
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.permissions import open_to_others


@pytest.mark.parametrize("ledger", ["sqlite", "postgresql"])
async def test_it_serves_on_a_socket_and_stops_on_a_signal(
    nats_server: NatsServer, tmp_path: Path, ledger: str, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/ledger/runs.db" if ledger == "sqlite" else request.getfixturevalue("postgres_url")
    service = ServiceProcess("fleet_runs_api", tmp_path, PYOCO_NATS_URL=nats_server.url, PYOCO_RUNS_DATABASE_URL=url)
    async with service.serving() as client:
        submitted = await client.post("/runs", json={"flow_name": "hello"}, headers=ANONYMOUS)
        assert submitted.status_code == 200
        run_id = submitted.json()["run_id"]
        assert (await client.get(f"/runs/{run_id}", headers=ANONYMOUS)).json()["status"] == "PENDING"
        assert open_to_others(service.socket.parent) == []
        if ledger == "sqlite":
            assert open_to_others(tmp_path / "ledger") == []


def test_an_invalid_setting_is_refused_with_its_name_its_value_and_what_is_allowed(tmp_path: Path) -> None:
    output = ServiceProcess(
        "fleet_runs_api", tmp_path, PYOCO_RUNS_DATABASE_URL="mysql://x", PYOCO_SWEEP_INTERVAL_SEC="soon"
    ).refusal()
    assert "PYOCO_RUNS_DATABASE_URL='mysql://x' is not allowed" in output
    assert "PYOCO_SWEEP_INTERVAL_SEC='soon' is not allowed: input should be a valid number" in output
    assert "Traceback" not in output

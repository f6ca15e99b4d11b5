"""A real PostgreSQL in a container as the ledger, taken away and given back."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from testcontainers.community.postgres import PostgresContainer

from fleet_testkit.nats_server import free_port
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

IMAGE = "postgres:16-alpine"


@pytest.fixture
def database(engine: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresContainer]:
    # Without the container that cleans up after others: the with statement does, and nobody has to fetch an image.
    monkeypatch.setattr("testcontainers.core.config.testcontainers_config.ryuk_disabled", True)
    # The same port after a restart: services know one address.
    container = PostgresContainer(IMAGE, username="pyoco", password="of-a-test", dbname="pyoco", driver=None)
    with container.with_bind_ports(5432, free_port()) as database:
        yield database


def test_a_database_that_goes_away_refuses_submits_and_loses_none_that_was_answered(
    database: PostgresContainer, tmp_path: Path
) -> None:
    with Stack(tmp_path / "data", env={"PYOCO_RUNS_DATABASE_URL": database.get_connection_url()}) as stack:
        before = [submit(stack.client, "dag", seconds=0.2) for _ in range(20)]
        database.get_wrapped_container().kill()
        refused = stack.client.post("/runs", json={"flow_name": "hello"})
        assert refused.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert refused.json()["error"]["code"] == "DEPENDENCY_ERROR"
        database.get_wrapped_container().start()
        after = wait_until(lambda: _submitted(stack), within=60, what="runs accepted again")
        assert {run["status"] for run in wait_ended(stack.client, [*before, after], within=60)} == {"COMPLETED"}
        wait_until(
            lambda: 'pyoco_runs_total{status="COMPLETED"} 21.0' in stack.client.get("/metrics").text,
            within=30,
            what="every run counted once",
        )


def _submitted(stack: Stack) -> str | None:
    answer = stack.client.post("/runs", json={"flow_name": "hello"})
    return str(answer.json()["run_id"]) if answer.is_success else None

"""The same system with PostgreSQL as its ledger."""

import os
import signal
from pathlib import Path

import httpx
import psycopg
import pytest

from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

pytestmark = pytest.mark.long


@pytest.mark.embedded_only("its ledger is SQLite otherwise; in containers it is always PostgreSQL")
def test_a_stack_on_postgresql_works_and_goes_on_after_its_service_was_killed(
    tmp_path: Path, postgres_url: str
) -> None:
    with Stack(tmp_path / "data", env={"PYOCO_RUNS_DATABASE_URL": postgres_url}) as stack:
        runs_api = stack.parts["runs-api"]
        first = [submit(stack.client, "hello", name=f"number {number}") for number in range(10)]
        assert {snapshot["status"] for snapshot in wait_ended(stack.client, first)} == {"COMPLETED"}
        wait_until(lambda: listed(stack) == first[::-1], what="the runs listed, the newest first")
        assert 'pyoco_runs_total{status="COMPLETED"} 10.0' in stack.client.get("/metrics").text

        second = [submit(stack.client, "dag", seconds=0.3) for _ in range(5)]
        os.kill(runs_api["pid"], signal.SIGKILL)
        assert {snapshot["status"] for snapshot in wait_ended(stack.client, second)} == {"COMPLETED"}
        third = submit(stack.client, "hello")
        wait_ended(stack.client, [third])
        wanted = [third, *second[::-1], *first[::-1]]
        wait_until(lambda: listed(stack) == wanted, what="all runs listed")
        assert stack.parts["runs-api"]["pid"] != runs_api["pid"]
        assert not (stack.data_dir / "runs.db").exists()
    with psycopg.connect(postgres_url.replace("+psycopg", "", 1)) as ledger:
        rows = ledger.execute("SELECT run_id, status, attempt FROM runs ORDER BY seq DESC").fetchall()
        assert rows == [(run_id, "COMPLETED", 1) for run_id in wanted]
        assert ledger.execute("SELECT total FROM run_counts WHERE status = 'COMPLETED'").fetchone() == (16,)


def listed(stack: Stack) -> list[str]:
    """The completed runs of the list, in its order."""
    answer = stack.client.get("/runs", params={"status": "COMPLETED"})
    assert answer.status_code == httpx.codes.OK, answer.text
    return [run["run_id"] for run in answer.json()]

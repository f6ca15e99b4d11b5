"""A ledger of the test's own, on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_runs_api.database import Database


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path}/runs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    database = Database(url)
    database.migrate()
    yield database
    database.dispose()

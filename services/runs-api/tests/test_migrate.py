"""The ledger made ready before the service starts."""

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from fleet_kit.settings import SettingsError
from fleet_runs_api.ledger.migrations import HEAD
from fleet_runs_api.settings import LedgerSettings
from fleet_testkit.log_check import check_log_lines
from fleet_testkit.permissions import open_to_others
from fleet_testkit.programs import run_program


def migrate(**settings: str) -> "subprocess.CompletedProcess[str]":
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYOCO_")}
    done = run_program(["fleet_runs_api.ledger.migrate:main"], env={**outside, "PYOCO_LOAD_DOTENV": "0", **settings})
    assert check_log_lines(done.stdout.splitlines(), of="migrate") == 1
    return done


def test_a_new_ledger_is_made_and_one_that_is_there_stays(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new/runs.db"
    for _ in range(2):
        done = migrate(PYOCO_RUNS_DATABASE_URL=url)
        assert done.returncode == 0, done.stdout
        assert HEAD in done.stdout
    assert open_to_others(tmp_path / "new") == []


def test_on_postgresql_as_well(postgres_url: str) -> None:
    done = migrate(PYOCO_RUNS_DATABASE_URL=postgres_url)
    assert done.returncode == 0, done.stdout


def test_a_ledger_of_a_later_version_is_left_alone_with_a_message(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    migrate(PYOCO_RUNS_DATABASE_URL=f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as ledger:
        ledger.execute("UPDATE alembic_version SET version_num = '9999'")
        ledger.commit()
    done = migrate(PYOCO_RUNS_DATABASE_URL=f"sqlite:///{file}")
    assert done.returncode == 1
    assert "its schema 9999 is of a later version" in done.stdout
    assert done.stderr == ""


def test_a_database_that_is_away_is_reported_in_a_sentence() -> None:
    done = migrate(PYOCO_RUNS_DATABASE_URL="postgresql://pyoco@127.0.0.1:1/pyoco")
    assert done.returncode == 1
    assert "ledger" in done.stdout
    assert done.stderr == ""


def test_the_password_may_come_from_a_file_and_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text("p@ss/word:1\n")
    settings = LedgerSettings(runs_database_url="postgresql://pyoco@db/pyoco", runs_database_password_file=file)
    assert make_url(settings.runs_database_url).password == "p@ss/word:1"
    file.chmod(0o644)
    with pytest.raises(SettingsError, match="PYOCO_RUNS_DATABASE_PASSWORD_FILE") as refused:
        LedgerSettings.load(runs_database_url="postgresql://pyoco@db/pyoco", runs_database_password_file=file)
    assert "word" not in str(refused.value).replace("password", "").replace("PASSWORD", "")

"""A stack that is started differently from last time says so, or is refused with the ways out."""

import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.kv import KeyValue

from fleet_launcher.data_dir.folder import DataFolder
from fleet_launcher.data_dir.last_start import check_start, remember_start
from fleet_launcher.errors import LaunchError
from fleet_launcher.settings import LauncherSettings
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.waiting import wait_until

from .conftest import StandinServer

POSTGRES = "postgresql+psycopg://fleet:hush@db.example:5433/ledger?sslmode=require&password=hush&host=/run/pg"


@pytest.fixture(autouse=True)
def no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYOCO_LOAD_DOTENV", "0")
    return


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path)


def start(folder: DataFolder, **options: Any) -> list[str]:
    """Start as if all got healthy; what is said about it."""
    settings = LauncherSettings.load(**options)
    warnings = check_start(folder, settings)
    remember_start(folder, settings)
    return warnings


def test_a_stack_that_asked_for_keys_is_opened_only_by_saying_so(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start(folder) == []
    assert start(folder, http_auth_mode="api_key") == [
        "callers need an API key from now on (--auth api_key); at the last start they needed none"
    ]
    assert start(folder, http_auth_mode="api_key") == []
    with pytest.raises(LaunchError, match="repeat --auth api_key, or say --auth none to let in everybody"):
        start(folder)
    monkeypatch.setenv("PYOCO_HTTP_AUTH_MODE", "none")
    assert start(folder) == ["callers need no API key any more (--auth none); at the last start they needed one"]
    assert start(folder) == []


async def change_keys(server: NatsServer, change: Callable[[KeyValue], Awaitable[object]]) -> None:
    """The names that the stack's own NATS has kept when it is stopped after that."""
    with server.running():
        client = await nats.connect(server.url)
        await change(await client.jetstream().create_key_value(bucket="pyoco_auth"))
        await client.close()
        server.stop()


async def test_a_stack_that_has_had_keys_and_remembers_nothing_is_opened_only_by_saying_so(
    folder: DataFolder,
) -> None:
    server = NatsServer(folder.path)
    # A first start that was interrupted had no time to make a key.
    await change_keys(server, lambda keys: keys.status())
    assert check_start(folder, LauncherSettings.load()) == []
    await change_keys(server, lambda keys: keys.put("one", b"{}"))
    with pytest.raises(LaunchError, match="say --auth api_key, or --auth none to let in everybody"):
        start(folder)
    assert start(folder, http_auth_mode="api_key") == []
    with pytest.raises(LaunchError, match="repeat --auth api_key"):
        start(folder)


def test_a_ledger_elsewhere_is_left_only_by_saying_so(folder: DataFolder) -> None:
    own = f"sqlite:///{folder.runs_database}"
    assert start(folder) == start(folder, runs_database_url=own) == []
    shown = "postgresql://db.example:5433/ledger?host=/run/pg"
    assert start(folder, runs_database_url=POSTGRES) == [
        f"the ledger is now {shown}; runs stay behind in {own}, the one before"
    ]
    # Another password is the same ledger.
    assert start(folder, runs_database_url=POSTGRES.replace("hush", "quiet")) == []
    with pytest.raises(LaunchError) as refused:
        start(folder)
    assert f"is {shown}; set PYOCO_RUNS_DATABASE_URL to it again, or to {own} to go on" in str(refused.value)
    assert start(folder, runs_database_url=own) == [
        f"the ledger is now {own}; runs stay behind in {shown}, the one before"
    ]
    assert start(folder) == []


def test_the_remembered_start_is_private_and_holds_no_secret(folder: DataFolder) -> None:
    start(folder, runs_database_url=POSTGRES, http_auth_mode="api_key")
    assert stat.S_IMODE(folder.last_start.stat().st_mode) == 0o600
    assert "hush" not in folder.last_start.read_text()
    folder.last_start.write_text("{")
    with pytest.raises(LaunchError, match="is damaged; remove it, and give --auth and PYOCO_RUNS_DATABASE_URL"):
        start(folder)


def test_a_data_dir_that_was_moved_has_the_same_ledger(tmp_path: Path) -> None:
    start(DataFolder(tmp_path / "before"))
    (tmp_path / "before").rename(tmp_path / "after")
    assert start(DataFolder(tmp_path / "after")) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "fleet.example"])
def test_a_gateway_that_other_machines_can_reach_needs_an_auth_mode(folder: DataFolder, host: str) -> None:
    with pytest.raises(LaunchError, match="none of them would need a key; add --auth api_key, or say --auth none"):
        start(folder, host=host)
    assert start(folder, host=host, http_auth_mode="none") == []
    assert start(DataFolder(folder.path / "guarded"), host=host, http_auth_mode="api_key") == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_a_gateway_that_only_this_machine_can_reach_needs_no_word(folder: DataFolder, host: str) -> None:
    assert start(folder, host=host) == []


def test_the_command_remembers_what_has_started_and_refuses_in_one_sentence(server: StandinServer) -> None:
    parts = [{"name": "first"}]
    broken = [{"name": "bad", "behaviours": ["crash"]}]
    remembered = DataFolder(server.data_dir).last_start
    server.up(broken, "--auth", "api_key").communicate(timeout=60)
    assert not remembered.exists()  # what did not come up is not what the stack had
    server.up_and_ready(parts, "--auth", "api_key")
    wait_until(remembered.exists, within=30, what="the start remembered")
    server.run("down")
    for options in ([], ["--detach"]):
        refused = server.up(parts, *options)
        _, err = refused.communicate(timeout=60)
        assert (refused.returncode, err.count("\n")) == (1, 1)
        assert "asked for API keys when it was started last" in err
    assert server.state() is None
    opened = server.up_and_ready(parts, "--auth", "none")
    server.run("down")
    out, _ = opened.communicate(timeout=60)
    assert out.startswith("callers need no API key any more (--auth none)")

"""Settings: where they come from, which wins, and the sentence that says what to fix."""

import os
from pathlib import Path

import pytest

from fleet_kit.settings import FleetSettings, HttpSettings, SettingsError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and none of our variables set."""
    for name in os.environ:
        if name.startswith("PYOCO_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_anything_the_defaults_hold() -> None:
    settings = HttpSettings.load()
    assert settings.nats_url == "nats://127.0.0.1:4222"
    assert (settings.log_level, settings.log_format) == ("INFO", "json")
    assert (settings.log_utc, settings.log_include_traceback) == (True, True)
    assert (settings.uds, settings.host, settings.port) == (None, "127.0.0.1", 8000)


def test_options_win_over_the_environment_that_wins_over_the_env_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".env").write_text("PYOCO_HOST=127.0.0.2\nPYOCO_LOG_FORMAT=text\nPYOCO_LOG_LEVEL=ERROR\n")
    monkeypatch.setenv("PYOCO_HOST", "127.0.0.3")
    monkeypatch.setenv("PYOCO_LOG_LEVEL", "WARNING")
    settings = HttpSettings.load(host="127.0.0.4", port=None)
    assert (settings.host, settings.log_level, settings.log_format) == ("127.0.0.4", "WARNING", "text")
    assert settings.port == 8000


def test_another_env_file_may_be_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".env").write_text("PYOCO_HOST=127.0.0.2\n")
    (folder / "special.env").write_text("PYOCO_HOST=127.0.0.3\n")
    monkeypatch.setenv("PYOCO_ENV_FILE", "special.env")
    assert HttpSettings.load().host == "127.0.0.3"


@pytest.mark.parametrize("off", ["0", "false", "no", "OFF"])
def test_the_env_file_can_be_left_alone(off: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".env").write_text("PYOCO_HOST=127.0.0.2\n")
    monkeypatch.setenv("PYOCO_LOAD_DOTENV", off)
    assert HttpSettings.load().host == "127.0.0.1"


def test_a_strange_answer_to_whether_to_load_the_env_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYOCO_LOAD_DOTENV", "perhaps")
    with pytest.raises(SettingsError, match=r"^PYOCO_LOAD_DOTENV='perhaps' is not allowed: use 0 or 1$"):
        HttpSettings.load()


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYOCO_PORT", "")
    assert HttpSettings.load().port == 8000


def test_variables_of_other_processes_do_not_matter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".env").write_text("PYOCO_WHEEL_SYNC_DIR=x\nSOMETHING_ELSE=y\n")
    monkeypatch.setenv("PYOCO_UNHEARD_OF", "z")
    FleetSettings.load()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("PYOCO_PORT", "99999", "input should be less than or equal to 65535"),
        ("PYOCO_PORT", "http", "input should be a valid integer"),
        ("PYOCO_LOG_FORMAT", "xml", "input should be 'json' or 'text'"),
        ("PYOCO_LOG_LEVEL", "LOUD", "input should be 'DEBUG', 'INFO', 'WARNING', 'ERROR' or 'CRITICAL'"),
        ("PYOCO_LOG_UTC", "maybe", "input should be a valid boolean"),
        ("PYOCO_NATS_URL", "localhost", "string should match pattern"),
        ("PYOCO_NATS_CONNECT_TIMEOUT_SEC", "0", "input should be greater than 0"),
    ],
)
def test_an_invalid_value_is_refused_with_its_name_its_value_and_what_is_allowed(
    name: str, value: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as refusal:
        HttpSettings.load()
    assert str(refusal.value).startswith(f"{name}='{value}' is not allowed: {allowed}")


def test_a_bad_value_in_the_env_file_is_refused_alike(folder: Path) -> None:
    (folder / ".env").write_text("PYOCO_PORT=http\n")
    with pytest.raises(SettingsError, match=r"^PYOCO_PORT='http' is not allowed"):
        HttpSettings.load()


def test_every_bad_value_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYOCO_PORT", "http")
    monkeypatch.setenv("PYOCO_LOG_FORMAT", "xml")
    with pytest.raises(SettingsError) as refusal:
        HttpSettings.load()
    assert "PYOCO_PORT='http'" in str(refusal.value)
    assert "PYOCO_LOG_FORMAT='xml'" in str(refusal.value)

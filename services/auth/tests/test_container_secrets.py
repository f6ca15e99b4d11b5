"""The secrets of a fleet in containers."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from fleet_auth.settings import Settings
from fleet_kit.files.nkeys import read_nkey
from fleet_kit.settings import SettingsError
from fleet_testkit.log_check import check_log_lines
from fleet_testkit.programs import run_program


def make(out: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return run_program(["fleet_auth.admin.container_secrets:main", "--out", str(out), *options], env=os.environ)


def contents(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_every_part_gets_its_secrets_and_other_users_cannot_read_them(tmp_path: Path) -> None:
    done = make(tmp_path, "--workers", "2", "--tags", "cpu,gpu,cpu")
    assert done.returncode == 0, done.stderr
    assert "for cpu, gpu are in" in done.stdout + done.stderr
    found = contents(tmp_path)
    services = ("runs-api", "workers-api", "wheels-api", "auth")
    assert found.keys() == {
        *(f"{service}/{file}" for service in services for file in ("gateway.secret", "nats.nk")),
        *("gateway/gateway.secret", "runs-api/postgres.password", "postgres/password", "auth/pepper"),
        *("operator/nats.nk", "workers/worker-1.nk", "workers/worker-2.nk", "nats/users.conf"),
        *("nats/cluster.password", "nats/cluster.conf"),
    }
    assert len({found[f"{part}/gateway.secret"] for part in (*services, "gateway")}) == 1
    assert found["postgres/password"] == found["runs-api/postgres.password"] != found["auth/pepper"]
    users = found.pop("nats/users.conf")
    assert not any(secret.strip() in users for secret in found.values())
    for name in found:
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o400, name
    for seed in tmp_path.rglob("*.nk"):
        assert users.count(f"nkey: {read_nkey(seed, setting='a seed').public_key}") == 1
    assert "pyoco_workers_gpu" in users
    # The servers of a cluster know each other by it.
    assert found["nats/cluster.conf"].count(found["nats/cluster.password"].strip()) == 4


def test_once_more_keeps_what_is_there_and_adds_what_is_missing(tmp_path: Path) -> None:
    make(tmp_path, "--workers", "1")
    before = contents(tmp_path)
    make(tmp_path, "--workers", "2")
    after = contents(tmp_path)
    assert after.keys() - before.keys() == {"workers/worker-2.nk"}
    changed = {name for name, text in before.items() if after[name] != text}
    assert changed == {"nats/users.conf"}


def test_a_fleet_that_asked_for_keys_is_opened_only_by_saying_so(tmp_path: Path) -> None:
    for mode in ("", "none", "", "api_key", "api_key"):
        assert make(tmp_path, f"--auth={mode}").returncode == 0
    before = contents(tmp_path)
    refused = make(tmp_path, "--auth=", "--workers", "17")
    assert refused.returncode == 1
    assert "set PYOCO_HTTP_AUTH_MODE to api_key again, or to none to let in everybody" in refused.stderr
    assert "set it to api_key or none" in make(tmp_path, "--auth=apikey").stderr
    assert contents(tmp_path) == before
    for mode in ("none", ""):
        assert make(tmp_path, f"--auth={mode}").returncode == 0


def test_a_worker_of_another_name_is_let_in_until_that_is_taken_back(tmp_path: Path) -> None:
    make(tmp_path, "--workers", "1", "--grant", "far=gpu,default")
    make(tmp_path, "--workers", "1")  # as the next start does it
    seed = tmp_path / "operator" / "workers" / "far.nk"
    assert seed.stat().st_mode & 0o777 == 0o400
    users = (tmp_path / "nats" / "users.conf").read_text()
    assert users.count(f"nkey: {read_nkey(seed, setting='a seed').public_key}") == 1
    assert "pyoco_workers_gpu" in users
    done = make(tmp_path, "--workers", "1", "--revoke", "far")
    assert (done.returncode, seed.exists()) == (0, False)
    assert "WORKER_far" not in (tmp_path / "nats" / "users.conf").read_text()


def test_permissions_are_about_the_names_that_the_fleet_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYOCO_WORK_STREAM", "OTHER_WORK")
    monkeypatch.setenv("PYOCO_RUNS_KV_BUCKET", "other_runs")
    # Of others, and of files that only they have.
    monkeypatch.setenv("PYOCO_NATS_TLS_CA_FILE", "/nowhere/ca.pem")
    assert make(tmp_path, "--workers", "1").returncode == 0
    users = (tmp_path / "nats" / "users.conf").read_text()
    assert ("OTHER_WORK" in users, "KV_other_runs" in users) == (True, True)
    assert ("PYOCO_WORK" in users, "KV_pyoco_runs" in users) == (False, False)
    monkeypatch.setenv("PYOCO_WORK_STREAM", "no.name")
    refused = make(tmp_path, "--workers", "1")
    assert (refused.returncode, "PYOCO_WORK_STREAM='no.name' is not allowed" in refused.stderr) == (1, True)


@pytest.mark.parametrize("wanted", ["worker-1=x", "a.b=x", "far=x.>", "../far=x"])
def test_a_grant_under_a_bad_name_changes_nothing(tmp_path: Path, wanted: str) -> None:
    make(tmp_path, "--workers", "1")
    before = contents(tmp_path)
    refused = make(tmp_path, "--workers", "1", "--grant", wanted)
    assert (refused.returncode, refused.stderr.startswith("pyoco-fleet-secrets: ")) == (1, True)
    assert make(tmp_path, "--revoke", "nobody").returncode == 1
    assert contents(tmp_path) == before


def test_in_a_container_the_output_is_log_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYOCO_LOG_FORMAT", "json")
    done = make(tmp_path, "--workers", "1", "--grant", "far=gpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert check_log_lines(done.stdout.splitlines(), of="secrets") == 2
    refused = make(tmp_path, "--workers", "many")
    assert (refused.returncode, refused.stderr) == (1, "")
    assert check_log_lines(refused.stdout.splitlines(), of="secrets") == 1
    assert json.loads(refused.stdout)["level"] == "CRITICAL"


def test_a_refusal_is_one_sentence(tmp_path: Path) -> None:
    for options in (["--tags", "a b"], ["--workers", "-1"], ["--else"]):
        refused = make(tmp_path / "new", *options)
        assert refused.returncode == 1
        assert refused.stderr.startswith("pyoco-fleet-secrets: ")
        assert "Traceback" not in refused.stderr
    (tmp_path / "file").write_text("")
    refused = make(tmp_path / "file")
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr


def test_the_pepper_may_come_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYOCO_LOAD_DOTENV", "0")
    make(tmp_path)
    file = tmp_path / "auth" / "pepper"
    settings = Settings.load(auth_pepper_file=file)
    assert settings.auth_pepper is not None
    assert settings.auth_pepper.get_secret_value() == file.read_text().strip()
    with pytest.raises(SettingsError, match="both set"):
        Settings.load(auth_pepper_file=file, auth_pepper="another")
    os.chmod(file, 0o644)
    with pytest.raises(SettingsError, match="PYOCO_AUTH_PEPPER_FILE"):
        Settings.load(auth_pepper_file=file)

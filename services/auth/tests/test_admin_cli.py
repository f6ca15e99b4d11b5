"""The command pyoco-server-admin as operators use it: real processes, a real NATS, exit codes and sentences."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fleet_auth.admin.lifetimes import end_of_life
from fleet_contracts.names import WireNames
from fleet_contracts.nats_roles import SERVICE_ROLES, NatsUser, accounts_config
from fleet_kit.files.nkeys import make_nkey
from fleet_testkit.api_keys import secret_of
from fleet_testkit.nats_server import NatsServer, free_port
from fleet_testkit.programs import run_program

from .conftest import auth, until_status, verify

DAY = 86400


def run(*arguments: str, code: int = 0, **env: str) -> tuple[str, str]:
    done = run_program(["fleet_auth.admin.cli:main", *arguments], env=environment(**env))
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def environment(**env: str) -> dict[str, str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYOCO_")}
    return {**outside, "PYOCO_LOAD_DOTENV": "0", **env}


class Admin:
    def __init__(self, url: str) -> None:
        self.env = {"PYOCO_NATS_URL": url}

    def __call__(self, *arguments: str, code: int = 0, **env: str) -> tuple[str, str]:
        return run("api-key", *arguments, code=code, **self.env | env)

    def json(self, *arguments: str, **env: str) -> Any:
        out, err = self(*arguments, "--json", **env)
        assert err == ""
        return json.loads(out)


@pytest.fixture
def admin(nats_server: NatsServer) -> Admin:
    return Admin(nats_server.url)


async def test_the_first_key_of_a_fresh_system_needs_no_key(nats_server: NatsServer, admin: Admin) -> None:
    out, err = admin("create", "--tenant", "acme")
    key = out.strip()
    assert out == f"{key}\n"
    assert key.startswith("pyoco_")
    assert key not in err
    assert "of tenant acme for runs:read, runs:write; it does not expire" in err
    async with auth(nats_server) as client:
        answer = await verify(client, key)
        assert (answer.status_code, answer.headers["X-Pyoco-Tenant-Id"]) == (204, "acme")


async def test_a_key_is_issued_listed_and_revoked(nats_server: NatsServer, admin: Admin) -> None:
    async with auth(nats_server) as client:
        issued = admin.json(
            *("create", "--tenant", "acme", "--scopes", "admin, wheels:write", "--expires", "30d", "--name", "[b]CI")
        )
        assert (issued["scopes"], issued["name"]) == (["admin", "wheels:write"], "[b]CI")
        assert issued["expires_at"] == pytest.approx(time.time() + 30 * DAY, abs=60)
        await until_status(client, issued["api_key"], 204)
        other = admin.json("create", "--tenant", "globex")
        out, _ = admin("list")
        rows = out.splitlines()
        assert rows[0].split()[:2] == ["key", "id"]
        assert [row.split()[:2] for row in rows[1:]] == [[other["key_id"], "globex"], [issued["key_id"], "acme"]]
        assert "[b]CI" in rows[2]
        assert all(row.endswith("active") for row in (row.strip() for row in rows[1:]))
        assert [key["key_id"] for key in admin.json("list", "--tenant", "acme")] == [issued["key_id"]]
        _, err = admin("revoke", "--key-id", issued["key_id"])
        assert f"key {issued['key_id']} of tenant acme is revoked since" in err
        await until_status(client, issued["api_key"], 403)
        revoked = admin.json("revoke", "--key-id", issued["key_id"])
        assert revoked["state"] == "revoked"
        assert [key["key_id"] for key in admin.json("list")] == [other["key_id"]]
        everything = admin.json("list", "--all")
        assert everything == [
            {name: value for name, value in other.items() if name != "api_key"},
            revoked,
        ]
        secret = secret_of(issued["api_key"])
        assert secret not in str(everything) + out + str(revoked)
        assert "hash" not in str(everything)


async def test_the_pepper_is_taken_and_another_one_is_warned_of(nats_server: NatsServer, admin: Admin) -> None:
    key = admin.json("create", "--tenant", "acme", PYOCO_AUTH_PEPPER="hush")["api_key"]
    async with auth(nats_server, auth_pepper="hush") as client:
        assert (await verify(client, key)).status_code == 204
    _, err = admin("create", "--tenant", "acme")
    assert "warning: there are keys of another PYOCO_AUTH_PEPPER" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create"], "Missing option '--tenant'"),
        (["create", "--tenant", "a b"], "--tenant 'a b'"),
        (["create", "--tenant", "anonymous"], "choose another name"),
        (["create", "--tenant", "acme", "--scopes", "root,runs:read"], "root is not known; known are admin,"),
        (["create", "--tenant", "acme", "--scopes", ","], "--scopes names none"),
        (["create", "--tenant", "acme", "--expires", "soon"], "neither a span such as 30d"),
        (["create", "--tenant", "acme", "--expires", "2001-01-01"], "has passed already"),
        (["create", "--tenant", "acme", "--name", ""], "--name ''"),
        (["revoke"], "Missing option '--key-id'"),
        (["list", "--everything"], "No such option: --everything"),
        (["rotate"], "No such command 'rotate'"),
        (["list", "--data-dir", "/nonexistent"], "/nonexistent is not the data dir of a stack"),
        (["list", "--nats-url", "http://x"], "PYOCO_NATS_URL='http://x' is not allowed"),
    ],
)
def test_wrong_arguments_are_one_sentence_with_an_id_and_an_example(arguments: list[str], says: str) -> None:
    out, err = run("api-key", *arguments, code=1)
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith("pyoco-server-admin: ")
    assert says in line
    assert line.endswith("; example: pyoco-server-admin api-key create --tenant acme (ERR-PYOCO-0018)")


def test_an_unknown_key_is_reported_with_advice(admin: Admin) -> None:
    for key_id in ("nope", "a.b", ">", "*"):
        out, err = admin("revoke", "--key-id", key_id, code=1)
        assert (out, err) == (
            "",
            f"pyoco-server-admin: there is no key {key_id}; see `pyoco-server-admin api-key list --all`\n",
        )


def test_a_nats_that_is_away_is_one_sentence_within_seconds() -> None:
    url = f"nats://somebody:hush@127.0.0.1:{free_port()}"
    begun = time.monotonic()
    out, err = Admin(url)("create", "--tenant", "acme", code=1)
    assert time.monotonic() - begun < 20
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith(f"pyoco-server-admin: NATS at {url.rpartition('@')[2]} is unavailable (")
    assert line.endswith("(ERR-PYOCO-0003)")
    assert "hush" not in err


def test_a_nats_that_does_not_answer_in_time_is_one_sentence() -> None:
    late = "import fleet_auth.admin.cli as cli\ndef late(**_): raise TimeoutError\ncli.app = late\ncli.main()"
    done = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "NATS did not answer in time; try again" in done.stderr
    assert "ERR-PYOCO-0003" in done.stderr


def test_ctrl_c_ends_it_with_130() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "fleet_auth.admin", "api-key", "list", "--nats-url", url],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A background job ignores Ctrl-C, and its children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        silent.settimeout(30)
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        connection.close()
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.own_nats
def test_the_nats_of_the_data_dir_is_found(nats_server: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "nats.port").write_text(f"{nats_server.port}\n")
    out, _ = run("api-key", "create", "--tenant", "acme", "--data-dir", str(tmp_path))
    assert out.startswith("pyoco_")
    # The option wins over the environment.
    elsewhere = f"nats://127.0.0.1:{free_port()}"
    out, _ = run("api-key", "list", "--json", "--data-dir", str(tmp_path), PYOCO_NATS_URL=elsewhere)
    assert len(json.loads(out)) == 1
    out, _ = run("api-key", "list", "--json", PYOCO_DATA_DIR=str(tmp_path))
    assert len(json.loads(out)) == 1


def test_it_is_the_nats_user_of_auth_by_an_option_or_by_the_data_dir(tmp_path: Path) -> None:
    """With no more rights than auth has; without them it fails."""
    seed = tmp_path / "credentials" / "auth.nk"
    user = NatsUser("auth", make_nkey(seed).public_key, SERVICE_ROLES["auth"](WireNames()))
    server = NatsServer(tmp_path / "nats-server", more_config=accounts_config([user], []))
    server.start()
    try:
        _, err = run("api-key", "list", "--nats-url", server.url, code=1)
        assert "ERR-PYOCO-0003" in err
        out, _ = run(
            "api-key", "create", "--tenant", "acme", "--json", "--nats-url", server.url, "--nkey-file", str(seed)
        )
        (tmp_path / "nats.port").write_text(f"{server.port}\n")
        here = ("--data-dir", str(tmp_path))
        run("api-key", "revoke", "--key-id", json.loads(out)["key_id"], *here)
        out, _ = run("api-key", "list", "--all", "--json", *here)
        assert [key["state"] for key in json.loads(out)] == ["revoked"]
        out, _ = run("api-key", "list", "--json", "--nats-url", server.url, PYOCO_NATS_NKEY_FILE=str(seed))
        assert json.loads(out) == []
    finally:
        server.kill()


def test_there_is_help() -> None:
    out, _ = run("--help")
    assert "api-key" in out
    out, _ = run("api-key", "create", "--help")
    assert "--tenant" in out
    assert "wheels:write" in out


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("90s", 1000 + 90),
        ("30m", 1000 + 1800),
        ("12h", 1000 + 12 * 3600),
        ("30d", 1000 + 30 * DAY),
        (" 2w ", 1000 + 14 * DAY),
        ("1970-01-02", DAY),
        ("1970-01-02T00:00:00+09:00", DAY - 9 * 3600),
        ("1970-01-02T00:00:00Z", DAY),
    ],
)
def test_a_lifetime_is_a_span_or_a_date(text: str, end: float) -> None:
    assert end_of_life(text, now=1000.0) == end


@pytest.mark.parametrize(
    "text", ["999999w", "", "30", "d", "-1d", "0d", "1.5d", "1y", "tomorrow", "1970-01-01", "10000-01-01"]
)
def test_other_lifetimes_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        end_of_life(text, now=1000.0)

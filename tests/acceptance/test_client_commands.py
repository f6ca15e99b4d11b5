"""pyoco-client on a whole fleet, through the gateway: as scripts and as people use it, with keys and without."""

import fcntl
import json
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet_testkit.api_keys import KEY_HEADER, KeyRing
from fleet_testkit.fleet import Fleet
from fleet_testkit.programs import run_program
from fleet_testkit.wheels import build_wheel

COMMAND = Path(sys.executable).with_name("pyoco-client")
NOBODY = "nobody"
# Makes the terminal on its stdin that of a session of its own, so that Ctrl-C reaches the command alone.
# These tests may run in the background of a shell, whose processes ignore Ctrl-C.
_ON_TERMINAL = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.login_tty(0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass
class Client:
    env: dict[str, str]

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_program(["pyoco_fleet.cli.main:run", *arguments], env=self.env)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def on_a_terminal(self, *arguments: str, interrupt_after: str | None = None) -> tuple[int, str]:
        """Run it on a terminal of its own; with `interrupt_after` press Ctrl-C when that text was shown."""
        terminal, its_end = os.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, str(COMMAND), *arguments],
            env={**self.env, "TERM": "xterm-256color"},
            stdin=its_end,
        )
        os.close(its_end)
        shown, deadline = b"", time.monotonic() + 60
        try:
            while time.monotonic() < deadline:
                if not select.select([terminal], [], [], 0.1)[0]:
                    continue
                try:
                    shown += os.read(terminal, 65536)
                except OSError:
                    # It has ended.
                    break
                if interrupt_after and interrupt_after.encode() in shown:
                    os.write(terminal, b"\x03")
                    interrupt_after = None
            code = process.wait(timeout=10)
        finally:
            process.kill()
            os.close(terminal)
        return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def _environment(url: str, key: str | None, home: Path) -> dict[str, str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYOCO_", "LC_", "LANG"))}
    return {**outside, "HOME": str(home), "PYOCO_SERVER": url, **({"PYOCO_API_KEY": key} if key else {})}


@pytest.fixture(scope="module")
def client(stack: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return Client(_environment(stack.url, None, tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def ring(guarded: Fleet) -> KeyRing:
    return KeyRing(guarded)


@pytest.fixture(scope="module")
def guarded_client(guarded: Fleet, ring: KeyRing, tmp_path_factory: pytest.TempPathFactory) -> Client:
    key = ring.issue("commands")[KEY_HEADER]
    return Client(_environment(guarded.url, key, tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def failed(client: Client) -> dict[str, Any]:
    """A run that has failed, as `submit --follow` in a pipe says it."""
    done = client.run("submit", "failing", "-p", "message=no luck", "--follow")
    assert done.returncode == 2
    assert "[prepare] all is well so far" in done.stderr
    run: dict[str, Any] = json.loads(done.stdout)
    return run


def test_a_submit_in_a_pipe_is_json_and_ends_with_the_result_if_it_waits(client: Client) -> None:
    submitted = client.json("submit", "--flow-name", "hello", "--params", '{"name": "Bo"}', "--param", "name=Ada")
    assert set(submitted) == {"run_id", "status"}
    ended = client.json("submit", "hello", "-p", "name=Ada", "--wait")
    assert (ended["status"], ended["result"], ended["params"]) == ("COMPLETED", "Hello, Ada!", {"name": "Ada"})
    assert client.run("submit", "hello", "--wait", "--output", "status").stdout == "COMPLETED\n"


def test_a_submit_on_a_terminal_shows_tasks_output_and_result(client: Client) -> None:
    code, shown = client.on_a_terminal("submit", "hello", "-p", "name=Ada", "--follow")
    assert code == 0
    for expected in (r"hello +\S+ +COMPLETED", r"greet +SUCCEEDED +<?\d+ ms", r"\[greet\] Hello, Ada!", "result"):
        assert re.search(expected, shown), shown


def test_a_misspelt_flow_is_noticed_on_a_terminal(client: Client) -> None:
    code, shown = client.on_a_terminal("submit", "helo")
    assert code == 0
    assert "no live worker offers the flow helo; did you mean hello?" in shown


def test_ctrl_c_leaves_a_followed_run_alone_and_says_how_to_cancel_it(client: Client) -> None:
    code, shown = client.on_a_terminal("submit", "long", "-p", "seconds=30", "--follow", interrupt_after="step 1 of")
    assert code == 130
    [run_id] = re.findall(r"(\S+) goes on\.", shown)
    [cancel] = re.findall(r"cancel it: pyoco-client (.+?)\r", shown)
    assert client.json("get", run_id)["status"] == "RUNNING"
    assert client.json(*cancel.split(), "--wait")["status"] == "CANCELLED"


def test_a_failed_run_says_why_and_what_one_can_do(client: Client, failed: dict[str, Any]) -> None:
    said = client.json("why", failed["run_id"])
    assert (said["task"], said["error"]) == ("explode", "ValueError: no luck")
    assert "ValueError: no luck" in said["traceback"]
    code, shown = client.on_a_terminal("why", failed["run_id"])
    assert code == 0
    assert "The task explode failed" in shown
    assert f"pyoco-client rerun {failed['run_id']}" in shown
    assert client.json("attempts", failed["run_id"])["attempts"][0]["outcome"] == "failed"


def test_a_waiting_run_says_what_it_waits_for(client: Client) -> None:
    waiting = client.json("submit", "hello", "--tag", NOBODY)["run_id"]
    assert "no live worker serves tag nobody" in client.json("why", waiting)["why"]
    timed_out = client.run("watch", waiting, "--output", "table", "--timeout-sec", "1")
    assert timed_out.returncode == 1
    assert "has not ended within 1 s; it goes on" in timed_out.stderr
    assert client.json("cancel", "--run-id", waiting, "--wait", "--timeout-sec", "20")["status"] == "CANCELLED"


def test_a_run_is_named_by_the_beginning_of_its_id(client: Client, failed: dict[str, Any]) -> None:
    run_id = failed["run_id"]
    assert client.run("get", run_id[:23], "--output", "status").stdout == "FAILED\n"
    client.json("submit", "hello")
    ambiguous = client.run("get", run_id[:3])
    assert ambiguous.returncode == 1
    assert "several runs have an id that begins with" in ambiguous.stderr
    assert len(re.findall(r"^  [0-9a-f-]{36}  ", ambiguous.stderr, re.MULTILINE)) >= 2
    unknown = client.run("get", "ffffffff")
    assert (unknown.returncode, "no run has an id that begins with ffffffff" in unknown.stderr) == (1, True)


def test_lists_are_filtered_and_read_page_by_page(client: Client, failed: dict[str, Any]) -> None:
    recent = client.json("list", "--since", "yesterday", "--failed", "--flow", "failing")
    assert failed["run_id"] in [run["run_id"] for run in recent]
    assert {run["status"] for run in recent} == {"FAILED"}
    assert client.json("list", "--until", "yesterday") == []
    first = client.json("list-vnext", "--limit", "1")
    second = client.json("list-vnext", "--limit", "1", "--cursor", first["next_cursor"])
    assert first["items"][0]["run_id"] != second["items"][0]["run_id"]
    heading, row, *_ = client.run("list", "--failed", "--output", "table").stdout.splitlines()
    assert heading.split() == ["run_id", "status", "flow_name", "tag", "updated_at"]
    assert row.split()[1] == "FAILED"


def test_what_a_run_has_said_and_done_is_read_by_itself(client: Client) -> None:
    run_id = client.json("submit", "hello", "-p", "name=Ada", "--wait")["run_id"]
    assert client.run("logs", run_id).stdout == "[choose] greeting Ada\n[greet] Hello, Ada!\n"
    assert client.run("logs", run_id, "-f", "--task", "greet", "--no-prefix").stdout == "Hello, Ada!\n"
    events = [json.loads(line) for line in client.run("logs", run_id, "--output", "json").stdout.splitlines()]
    assert [event["text"] for event in events] == ["greeting Ada\n", "Hello, Ada!\n"]
    assert client.json("result", run_id)["result"] == "Hello, Ada!"
    assert client.json("tasks", run_id)["task_records"]["greet"]["output"] == "Hello, Ada!"
    again = client.json("rerun", run_id, "--wait")
    assert (again["rerun_of"], again["result"]) == (run_id, "Hello, Ada!")


def test_a_watch_in_a_pipe_is_a_line_for_each_event(client: Client, failed: dict[str, Any]) -> None:
    lines = client.run("watch", failed["run_id"], "--until-terminal").stdout.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["snapshot"]
    [line] = client.run("watch", failed["run_id"], "--max-events", "1", "--output", "status").stdout.splitlines()
    assert line.split("\t")[1:] == ["snapshot", "FAILED", failed["run_id"]]


def test_a_workflow_file_is_submitted(client: Client, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "flow.yaml"
    done = client.json("submit-yaml", "--workflow-file", str(example), "--flow-name", "by-file", "--tag", "default")
    assert client.json("get", done["run_id"])["workflow_yaml_bytes"] == len(example.read_bytes())
    (tmp_path / "bad.yaml").write_text("version: 1\nflow: 7\n")
    refused = client.run("submit-yaml", str(tmp_path / "bad.yaml"))
    assert refused.returncode == 1
    assert re.search(r"\(ERR-PYOCO-0002, request \w+\)", refused.stderr)


def test_params_that_do_not_fit_are_refused_with_the_way_to_see_what_does(client: Client) -> None:
    refused = client.run("submit", "hello", "-p", "nmae=Ada")
    assert refused.returncode == 1
    assert 'did you mean "name"?' in refused.stderr
    assert "what you can do: pyoco-client flows hello" in refused.stderr
    flow = client.json("flows", "hello")
    assert "name" in flow["params_schema"]["properties"]
    assert "hello" in [one["name"] for one in client.json("flows")["flows"]]


def test_dead_letters_are_found_and_tried_again(client: Client) -> None:
    message = "tried again"
    run_id = json.loads(client.run("submit", "failing", "-p", f"message={message}", "--wait").stdout)["run_id"]

    def letters() -> list[Any]:
        return list(client.json("dlq", "list", "--run-id", run_id)["items"])

    deadline = time.monotonic() + 20
    while not (found := letters()):
        assert time.monotonic() < deadline, "no dead letter"
    assert client.json("dlq", "show", str(found[0]["id"]))["run"]["status"] == "FAILED"
    assert found[0]["fingerprint"] in [group["fingerprint"] for group in client.json("dlq", "groups")["items"]]
    assert (
        letters()
        == client.json("dlq", "list", "--run-id", run_id, "--fingerprint", found[0]["fingerprint"][:8])["items"]
    )
    assert client.json("requeue", "--run-id", run_id)["requeued"] == 1
    assert client.json("watch", run_id, "--until-terminal", "--max-events", "1")["data"]["run_id"] == run_id
    assert client.run("dlq", "list", "--output", "table").returncode == 0


def test_workers_are_listed_hidden_and_drained(client: Client) -> None:
    [worker] = [one for one in client.json("workers") if one["tags"] == ["default"]][:1]
    name = worker["worker_id"]
    assert client.json("workers", "hide", name)["hidden"] is True
    assert name not in [one["worker_id"] for one in client.json("workers")]
    assert name in [one["worker_id"] for one in client.json("workers", "--include-hidden")]
    assert client.json("workers", "show", name)["hidden"] is False
    try:
        assert client.json("workers", "drain", name)["draining"] is True
    finally:
        assert client.json("workers", "resume", name)["draining"] is False
    heading = client.run("workers", "--output", "table").stdout.splitlines()[0]
    assert heading.split() == ["worker_id", "state", "tags", "plugins", "plugin_preview"]


def test_nobody_there_is_said_in_one_sentence(client: Client) -> None:
    done = client.run("list", "--server", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (1, "")
    first, advice = done.stderr.splitlines()
    assert first == "error: nothing answers at http://127.0.0.1:9: [Errno 111] Connection refused (ERR-PYOCO-0001)"
    assert "./fleet up" in advice
    japanese = client.run("list", "--server", "http://127.0.0.1:9", "--lang", "ja").stderr
    assert "稼働確認に失敗しました" in japanese


def test_a_reader_that_goes_away_is_no_error(client: Client) -> None:
    script = f'"{COMMAND}" metrics | head -1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", script], env=client.env, capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stderr, done.stdout.splitlines()[-1]) == ("", "0")


# With keys


def test_a_missing_key_is_answered_with_the_way_to_get_one(guarded: Fleet, tmp_path: Path) -> None:
    keyless = Client(_environment(guarded.url, None, tmp_path))
    refused = keyless.run("list")
    assert refused.returncode == 1
    assert "ERR-PYOCO-0014" in refused.stderr
    assert "PYOCO_API_KEY" in refused.stderr
    by_script = Client({**keyless.env, "PYOCO_CLIENT_PROGRAM": "./fleet"}).run("list").stderr
    assert "export PYOCO_API_KEY=$(./fleet admin api-key create --tenant me" in by_script


def test_a_key_of_the_environment_or_of_a_profile_lets_in(guarded: Fleet, guarded_client: Client) -> None:
    run_id = guarded_client.json("submit", "hello", "--tag", NOBODY)["run_id"]
    assert [run["run_id"] for run in guarded_client.json("list")] == [run_id]
    profiles = Path(guarded_client.env["HOME"]) / ".config" / "pyoco" / "config.toml"
    profiles.parent.mkdir(parents=True)
    key = guarded_client.env["PYOCO_API_KEY"]
    profiles.write_text(f'[there]\nserver = "{guarded.url}"\napi_key = "{key}"\n')
    home = {name: value for name, value in guarded_client.env.items() if not name.startswith("PYOCO_")}
    assert Client(home).json("get", run_id, "--profile", "there")["run_id"] == run_id


def test_a_key_without_the_scope_is_told_which_one_it_lacks(guarded: Fleet, ring: KeyRing, tmp_path: Path) -> None:
    reader = Client(_environment(guarded.url, ring.issue("commands", ["runs:read"])[KEY_HEADER], tmp_path))
    refused = reader.run("submit", "hello")
    assert refused.returncode == 1
    assert "a key with the scope runs:write" in refused.stderr


def test_keys_are_issued_listed_and_revoked(guarded_client: Client) -> None:
    made = guarded_client.json("keys", "create", "--tenant", "by-client", "--scopes", "runs:read", "--expires", "1d")
    assert made["api_key"].startswith("pyoco_")
    listed = guarded_client.json("keys", "list", "--tenant", "by-client")["items"]
    assert [key["key_id"] for key in listed] == [made["key_id"]]
    assert guarded_client.json("keys", "revoke", made["key_id"])["state"] == "revoked"
    assert guarded_client.json("keys", "show", made["key_id"])["state"] == "revoked"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return build_wheel(tmp_path, "clientwheel", "1.0")


def test_a_wheel_is_uploaded_with_a_warning_and_deleted(guarded_client: Client, wheel: Path) -> None:
    refused = guarded_client.run("wheel-upload", "--wheel-file", str(wheel), "--preflight", "strict")
    assert (refused.returncode, "it has no entry points" in refused.stderr) == (1, True)
    uploaded = guarded_client.run("wheel-upload", "--wheel-file", str(wheel), "--tags", "cpu,linux")
    assert uploaded.returncode == 0, uploaded.stderr
    assert "note: it has no entry points" in uploaded.stderr
    assert json.loads(uploaded.stdout)["tags"] == ["cpu", "linux"]
    assert wheel.name in [one["name"] for one in guarded_client.json("wheels")]
    assert guarded_client.json("wheel-delete", "--name", wheel.name)["deleted"] is True
    history = guarded_client.json("wheel-history", "--wheel-name", wheel.name)
    assert [event["action"] for event in history] == ["delete", "upload"]

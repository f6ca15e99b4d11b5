"""The real parts: NATS, the services, nginx and a worker, started and stopped as a newcomer does it."""

import socket
from pathlib import Path

import httpx
import pytest

from fleet_testkit.nats_server import NatsServer, free_port
from fleet_testkit.permissions import open_to_others
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

pytestmark = pytest.mark.long

TOO_MUCH = str(10**15)


def run_hello(stack: Stack) -> str:
    """Submit the first example and wait for its end; its run id."""
    answer = stack.client.post("/runs", json={"flow_name": "hello", "params": {"name": "Ada"}})
    assert answer.status_code == httpx.codes.OK, answer.text
    run_id: str = answer.json()["run_id"]

    def ended() -> bool:
        return bool(stack.client.get(f"/runs/{run_id}").json()["status"] == "COMPLETED")

    wait_until(ended, within=20, what="the run completed")
    return run_id


def test_a_stack_has_the_workers_it_was_given_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    services = {"nats", "auth", "runs-api", "workers-api", "wheels-api", "gateway"}
    with Stack(tmp_path / "data", "--workers", "2", "--slots", "1") as stack:
        assert stack.status()["state"] == "running"
        assert stack.parts.keys() == services | {"worker-1", "worker-2"}
        assert all({"name", "pid", "state", "address", "log", "data"} <= part.keys() for part in stack.parts.values())
        assert stack.parts["nats"]["data"] == str(tmp_path / "data" / "nats")
        assert len(stack.client.get("/workers").json()) == 2
        run_id = run_hello(stack)
        address = stack.nats_url
        assert open_to_others(stack.data_dir) == []
        assert open_to_others(Path(stack.parts["auth"]["address"].removeprefix("unix:")).parent) == []
    assert open_to_others(tmp_path / "data") == []
    # The limits of streams that exist are those they were made with.
    env = {"PYOCO_EVENTS_MAX_BYTES": TOO_MUCH, "PYOCO_ALLOWED_HOSTS": "fleet.example"}
    with Stack(tmp_path / "data", "--workers", "0", env=env) as again:
        assert again.parts.keys() == services
        assert again.nats_url == address
        assert again.client.get(f"/runs/{run_id}").json()["status"] == "COMPLETED"
        hosts = {"fleet.example": httpx.codes.OK, "evil.example": httpx.codes.MISDIRECTED_REQUEST}
        assert {host: again.client.get("/runs", headers={"Host": host}).status_code for host in hosts} == hosts


def test_a_broken_edit_is_shown_and_a_mended_one_is_in_force(tmp_path: Path) -> None:
    flows = tmp_path / "flows"
    flows.mkdir()
    flow = "from pyoco import Flow, task\nhello = Flow('hello') >> task(lambda name: VERSION)\n"
    (flows / "hello.py").write_text(f"VERSION = 1\n{flow}")
    (tmp_path / "flow.env").write_text("COLOUR=red\n")
    options = ("--slots", "1", "--flows-dir", str(flows), "--flow-env", str(tmp_path / "flow.env"))
    with Stack(tmp_path / "data", *options) as stack:
        (flows / "hello.py").write_text(f"VERSION = (\n{flow}")
        wait_until(lambda: "hello.py could not be loaded: SyntaxError" in stack.run("status").stdout, within=20)
        failed = stack.run("reload")
        assert failed.returncode == 1
        assert "worker-1: the flows could not be reloaded, those from before stay in force: " in failed.stdout
        run_hello(stack)
        (flows / "hello.py").write_text(f"VERSION = 2\n{flow}")
        reloaded = stack.run("reload")
        assert (reloaded.returncode, reloaded.stderr) == (0, "")
        assert "worker-1: the flows were reloaded: hello" in reloaded.stdout
        assert stack.client.get(f"/runs/{run_hello(stack)}").json()["result"] == 2
    assert stack.run("reload").returncode == 1


def test_an_existing_nats_is_used_instead_of_an_own_one(tmp_path: Path, nats_server: NatsServer) -> None:
    with Stack(tmp_path / "data", "--nats-url", nats_server.url) as stack:
        assert "nats" not in stack.parts
        run_hello(stack)


def test_a_data_dir_with_a_long_path_works(tmp_path: Path) -> None:
    with Stack(tmp_path / ("a long name " * 10), "--workers", "0") as stack:
        assert stack.client.get("/health").status_code == httpx.codes.OK
        folder = Path(stack.parts["auth"]["address"].removeprefix("unix:")).parent
        assert folder.is_dir()
    assert not folder.exists()


def refusal(stack: Stack, *options: str) -> str:
    """The sentence with which a start in the background is refused; nothing may be left of it."""
    refused = stack.run("up", *options, "--detach", "--port", str(stack.port))
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert stack.status()["state"] == "stopped"
    assert not (stack.data_dir / "fleet.lock").exists()
    return refused.stderr


def test_a_start_in_the_background_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "taken")
    with socket.create_server(("127.0.0.1", stack.port)):
        assert f"port {stack.port} on 127.0.0.1 is taken" in refusal(stack, "--with-nats")

    away = f"nats://user:secret@127.0.0.1:{free_port()}"
    sentence = refusal(Stack(tmp_path / "away", env={"PYOCO_NATS_URL": away}))
    assert f"NATS at {away.replace('user:secret@', '')} cannot be reached (nothing listens there)" in sentence
    assert "--with-nats" in sentence

    sentence = refusal(Stack(tmp_path / "bin", env={"PYOCO_NATS_SERVER_BIN": "no-such-nats"}), "--with-nats")
    assert "PYOCO_NATS_SERVER_BIN='no-such-nats' is not a program" in sentence

    sentence = refusal(Stack(tmp_path / "nginx", env={"PYOCO_NGINX_BIN": "no-such-nginx"}), "--with-nats")
    assert "PYOCO_NGINX_BIN='no-such-nginx'" in sentence

    sentence = refusal(Stack(tmp_path / "room", env={"PYOCO_EVENTS_MAX_BYTES": TOO_MUCH}), "--with-nats")
    assert "dead letters and events may take" in sentence

    wrong = {"PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC": "-1"}
    sentence = refusal(Stack(tmp_path / "setting", env=wrong), "--with-nats")
    assert "-api does not start" in sentence
    assert "PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC='-1' is not allowed" in sentence

"""`pyoco-server up` with stand-in parts: how it ends, what it leaves, what it refuses."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from fleet_testkit.nats_server import free_port
from fleet_testkit.waiting import wait_until

from .conftest import StandinServer

pytestmark = pytest.mark.long

TWO_PARTS = [{"name": "first"}, {"name": "second"}]


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def hangups(handler: signal.Handlers) -> Iterator[None]:
    """Processes started meanwhile inherit it: nohup ignores hangups, and these tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)])
def test_a_signal_stops_everything_and_leaves_nothing(server: StandinServer, how: signal.Signals, code: int) -> None:
    with hangups(signal.SIG_DFL):
        launcher = server.up_and_ready(TWO_PARTS)
    pids = server.pids().values()
    launcher.send_signal(how)
    out, err = launcher.communicate(timeout=60)
    assert (launcher.returncode, err) == (code, "")
    assert all(map(is_gone, pids))
    assert server.leftovers() == []
    assert "http://127.0.0.1:" in out
    assert "try: ./fleet workers" in out


def test_under_nohup_a_stack_outlives_its_terminal(server: StandinServer) -> None:
    with hangups(signal.SIG_IGN):
        launcher = server.up_and_ready(TWO_PARTS)
    launcher.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(timeout=1)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 130


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of Linux")
def test_other_processes_of_its_user_cannot_look_into_the_launcher(server: StandinServer) -> None:
    server.up_and_ready([{"name": "only"}])
    assert (server.data_dir / "launcher.dumpable").read_text() == "0"


def test_ctrl_c_while_the_parts_start_stops_them_too(server: StandinServer) -> None:
    launcher = server.up([{"name": "slow", "behaviours": ["unready"]}])
    wait_until(lambda: (server.data_dir / "started").exists(), what="the part started")
    [pid] = server.pids().values()
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    assert is_gone(pid)
    assert server.leftovers() == []


def test_another_ctrl_c_does_not_wait_for_a_hanging_part(server: StandinServer) -> None:
    launcher = server.up_and_ready([{"name": "stuck", "behaviours": ["deaf"], "stop_seconds": 600}])
    [pid] = server.pids().values()
    launcher.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(timeout=0.5)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    assert is_gone(pid)


def test_nothing_outlives_a_killed_launcher_and_the_next_one_starts(server: StandinServer) -> None:
    launcher = server.up_and_ready([*TWO_PARTS, {"name": "stuck", "behaviours": ["deaf"]}])
    pids = server.pids().values()
    launcher.kill()
    for pid in pids:
        wait_until(lambda pid=pid: is_gone(pid), what="a part ends with its launcher")  # type: ignore[misc]
    status = server.status()
    assert status["state"] == "stopped"
    assert {(part["state"], part["pid"]) for part in status["parts"]} == {("stopped", None)}
    assert server.run("status").returncode == 3
    server.up_and_ready(TWO_PARTS)


@pytest.mark.parametrize("command", ["up", "down"])
def test_what_survived_a_killed_launcher_is_stopped_by(server: StandinServer, command: str) -> None:
    survivor = {"name": "survivor", "behaviours": ["deaf", "parent"], "death_signal": "SIGTERM"}
    launcher = server.up_and_ready([survivor])
    [pid] = server.pids().values()
    child = server.child_of("survivor")
    launcher.kill()
    launcher.wait()
    status = server.status()
    assert (status["state"], status["parts"][0]["state"]) == ("degraded", "unhealthy")
    if command == "up":
        server.up_and_ready(TWO_PARTS)
    else:
        assert "stopped survivor" in server.run("down").stdout
        assert server.leftovers() == []
    assert is_gone(pid)
    assert is_gone(child.pid)


def test_down_stops_a_running_stack_and_says_what_it_stopped(server: StandinServer) -> None:
    launcher = server.up_and_ready(TWO_PARTS)
    down = server.run("down")
    assert down.returncode == 0
    assert down.stdout.endswith("stopped first, second, the launcher\n")
    launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    again = server.run("down")
    assert again.returncode == 0
    assert again.stdout.startswith("nothing runs in")


def test_a_crashed_part_is_restarted_and_the_restart_is_shown(server: StandinServer) -> None:
    launcher = server.up_and_ready(TWO_PARTS)
    before = server.pids()["first"]
    psutil.Process(before).kill()
    wait_until(lambda: server.pids().get("first") not in (None, before), what="a new process")
    server.wait_running()
    [first, _] = server.status()["parts"]
    assert first["restarts"] == 1
    launcher.send_signal(signal.SIGTERM)
    out, _ = launcher.communicate(timeout=60)
    assert "first ended: killed by SIGKILL; restart 1 in 0.2 s" in out
    assert "first is up" in out
    assert "first is healthy" in out


def test_what_a_worker_logs_about_its_flows_is_shown_and_nothing_else_of_it(server: StandinServer) -> None:
    launcher = server.up_and_ready([{"name": "worker-1"}])
    lines = [
        {"event": "flows_reload_failed", "level": "ERROR", "message": "etl.py [is] broken"},
        {"event": "worker_job", "level": "INFO", "message": "a run"},
        {"event": "flows_broken", "level": "ERROR", "message": "x.py", "exc_type": "NameError", "exc_message": "y"},
    ]
    with (server.data_dir / "logs" / "worker-1.log").open("a") as log:
        log.writelines(f"{json.dumps(line)}\n" for line in lines)
    launcher.send_signal(signal.SIGTERM)
    out, _ = launcher.communicate(timeout=60)
    assert "worker-1: etl.py [is] broken\n" in out
    assert "worker-1: x.py (NameError: y)\n" in out
    assert "a run" not in out


def test_a_data_dir_in_use_is_refused_and_free_after_a_kill(server: StandinServer) -> None:
    launcher = server.up_and_ready(TWO_PARTS)
    _, err = server.up(TWO_PARTS, "--port", str(free_port())).communicate(timeout=60)
    assert server.launchers[-1].returncode == 1
    assert f"is in use by the stack with pid {launcher.pid}; stop it with `./fleet down" in err
    assert err.count("\n") == 1
    launcher.kill()
    launcher.wait()
    server.up_and_ready(TWO_PARTS)


def test_a_taken_port_is_refused_before_anything_is_started(server: StandinServer) -> None:
    with socket.create_server(("127.0.0.1", server.port)):
        _, err = server.up(TWO_PARTS).communicate(timeout=60)
    assert server.launchers[-1].returncode == 1
    assert err == (
        f"pyoco-server: port {server.port} on 127.0.0.1 is taken; stop what uses it or choose another with --port\n"
    )
    assert not (server.data_dir / "started").exists()
    assert server.leftovers() == []


def test_a_data_dir_that_cannot_be_written_is_refused(server: StandinServer, tmp_path: Path) -> None:
    # A folder below a file and one in /proc refuse even the superuser.
    (tmp_path / "file").write_text("")
    for data_dir in (tmp_path / "file" / "data", Path("/proc/data")):
        _, err = server.up(TWO_PARTS, "--data-dir", str(data_dir)).communicate(timeout=60)
        assert server.launchers[-1].returncode == 1
        assert f"cannot write to the data dir {data_dir}" in err
        assert "--data-dir" in err
        assert err.count("\n") == 1


def test_a_part_that_cannot_start_is_named_with_its_log(server: StandinServer) -> None:
    _, err = server.up([*TWO_PARTS, {"name": "bad", "behaviours": ["crash"]}]).communicate(timeout=60)
    assert server.launchers[-1].returncode == 1
    assert "bad does not start (exit code 1" in err
    assert f"see {server.data_dir}/logs/bad.log, its last line: WARNING boom" in err
    assert server.leftovers() == []


def test_a_part_that_does_not_get_healthy_in_time_is_named_with_its_log(server: StandinServer) -> None:
    launcher = server.up([{"name": "slow", "behaviours": ["unready"]}], "--start-timeout", "1.5")
    _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert "slow is not healthy after 1.5 s (no ready file)" in err
    assert "its last line: slow is up" in err
    assert server.leftovers() == []


def test_an_invalid_setting_is_named_with_its_value_and_what_is_allowed(server: StandinServer) -> None:
    _, err = server.up(TWO_PARTS, env={"PYOCO_DASHBOARD_LANG": "fr"}).communicate(timeout=60)
    assert server.launchers[-1].returncode == 1
    assert err == "pyoco-server: PYOCO_DASHBOARD_LANG='fr' is not allowed: input should be 'auto', 'ja' or 'en'\n"


def test_wrong_arguments_exit_with_one(server: StandinServer) -> None:
    for arguments in (["up", "--port", "100000"], ["nonsense"]):
        refused = server.run(*arguments)
        assert refused.returncode == 1
        assert refused.stderr.endswith("pyoco-server: invalid command line argument (ERR-PYOCO-0018)\n")


def test_status_of_a_stopped_stack_says_so(server: StandinServer) -> None:
    plain = server.run("status")
    assert (plain.returncode, plain.stdout) == (3, f"stopped: no stack runs in {server.data_dir}\n")
    assert server.status() == {"state": "stopped", "url": None, "parts": []}


def test_logs_shows_all_parts_or_one_and_names_them_when_there_is_no_such(server: StandinServer) -> None:
    server.up_and_ready(TWO_PARTS)
    assert server.run("logs").stdout == "first | first is up\nsecond | second is up\n"
    assert server.run("logs", "second").stdout == "second is up\n"
    unknown = server.run("logs", "third")
    assert unknown.returncode == 1
    assert "the parts are first, second" in unknown.stderr


def test_a_stack_outlives_the_pipe_that_it_prints_to(server: StandinServer) -> None:
    launcher = server.up(TWO_PARTS)
    assert launcher.stdout
    launcher.stdout.close()
    server.wait_running()
    launcher.stdout = None
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=30) == 0
    assert launcher.stderr
    assert launcher.stderr.read() == ""
    assert server.leftovers() == []

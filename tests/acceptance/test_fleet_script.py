"""What a newcomer types: ./fleet up, a run, ./fleet down; and nothing is left."""

import json
import socket
import subprocess
from pathlib import Path

import httpx
import psutil
import pytest

from fleet_testkit.nats_server import free_port
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import is_alive

pytestmark = pytest.mark.embedded_only("the script ./fleet, sockets and the lock of the data dir")

REPOSITORY = Path(__file__).parents[2]


def fleet(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(REPOSITORY / "fleet"), *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def up(data_dir: Path, port: int, *options: str) -> "subprocess.CompletedProcess[str]":
    return fleet("up", "--detach", "--data-dir", str(data_dir), "--port", str(port), *options)


def family(data_dir: Path) -> list[psutil.Process]:
    """Every process of a stack."""
    status = json.loads(fleet("status", "--json", "--data-dir", str(data_dir)).stdout)
    launcher = psutil.Process(status["launcher_pid"])
    processes = [launcher, *launcher.children(recursive=True)]
    assert {part["pid"] for part in status["parts"]} <= {process.pid for process in processes}
    return processes


def sockets_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_socket()]


def test_two_stacks_run_side_by_side_and_leave_no_process_no_socket_and_no_lock(short_path: Path) -> None:
    stacks = {short_path / "one": free_port(), short_path / "two": free_port()}
    processes = []
    try:
        for data_dir, port in stacks.items():
            started = up(data_dir, port)
            assert started.returncode == 0, started.stderr
            assert f"http://127.0.0.1:{port}" in started.stdout + started.stderr
        for data_dir, port in stacks.items():
            processes += family(data_dir)
            assert len(sockets_in(data_dir)) == 4
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                [ended] = wait_ended(client, [submit(client, "hello", name=data_dir.name)])
                assert ended["task_records"]["greet"]["output"] == f"Hello, {data_dir.name}!"
                assert [run["run_id"] for run in client.get("/runs").json()] == [ended["run_id"]]
    finally:
        stopped = [fleet("down", "--data-dir", str(data_dir)).returncode for data_dir in stacks]
    assert stopped == [0, 0]
    assert [process for process in processes if is_alive(process)] == []
    for data_dir, port in stacks.items():
        assert sockets_in(data_dir) == []
        assert [path.name for path in data_dir.iterdir() if path.name in ("fleet.lock", "fleet.json", "run")] == []
        with socket.create_server(("127.0.0.1", port)):
            pass  # nobody listens there any more

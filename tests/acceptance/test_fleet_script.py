"""The first commands of a newcomer: ./fleet up, a run, ./fleet down; and nothing is left."""

import json
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fleet_testkit.documented_commands import CommandShell
from fleet_testkit.nats_server import free_port
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import is_alive
from fleet_testkit.waiting import wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.embedded_only("the script ./fleet, sockets and the lock of the data dir"),
]

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


def test_help_lists_every_command_that_the_script_takes() -> None:
    script = (REPOSITORY / "fleet").read_text()
    cases = script[script.index('case "$command" in') :]
    taken = {name for line in re.findall(r"^  ([a-z|-]+)\)", cases, re.MULTILINE) for name in line.split("|")}
    listed = set(re.findall(r"^  ([a-z-]+) ", fleet("help").stdout, re.MULTILINE))
    assert taken - {"-h", "--help"} == listed


def test_the_commands_of_readme_and_stack_work_with_keys_on_a_fresh_data_dir(short_path: Path) -> None:
    (short_path / "flows").mkdir()
    (short_path / "flows" / "weather.py").write_text(
        "from pyoco import Flow, task\n\n@task\ndef report():\n    return 21\n\nflow = Flow('weather') >> report\n"
    )
    shell, separate = CommandShell(short_path, PYOCO_FLOWS_DIR=str(short_path / "flows")), None
    readme = (REPOSITORY / "README.md").read_text()
    chapter = readme[readme.index("## API keys") :]
    start, create, ask, list_keys, revoke, stop = chapter.split("```\n")[1].splitlines()
    try:
        printed = shell.run(start)
        invited = dict(line.split(": ", 1) for line in printed.splitlines() if line.startswith(("make a key", "try")))
        admin = shell.run(f'{create}\necho "$PYOCO_API_KEY"').strip()
        assert shell.run(ask, PYOCO_API_KEY=admin) == "[]\n"

        made, tried = (
            shell.run(f'{invited["make a key"]}; echo "$PYOCO_API_KEY"; {invited["try"]}').strip().split("\n")
        )
        headers = {"X-API-Key": made}
        with httpx.Client(base_url=f"http://127.0.0.1:{shell.port}", timeout=30, headers=headers) as client:
            [ended] = wait_ended(client, [json.loads(tried)["run_id"]])
            assert (ended["flow_name"], ended["status"]) == ("weather", "COMPLETED")
            waiting = client.post("/runs", json={"flow_name": "weather", "tag": "gpu"}).json()["run_id"]

            def shown() -> dict[str, Any]:
                answer: dict[str, Any] = client.get(f"/runs/{waiting}").json()
                return answer

            separate = shell.start(shown()["waiting_detail"].partition(" with: ")[2])
            assert wait_ended(client, [waiting])[0]["status"] == "COMPLETED"
            worker = shown()["worker_id"]

            [key_id] = re.findall(r"[0-9a-f]{16}", admin)[:1]
            assert key_id in shell.run(list_keys)
            shell.run(revoke.replace("7f1c0d3b9a52e684", key_id))
            wait_until(
                lambda: client.get("/runs", headers={"X-API-Key": admin}).status_code == httpx.codes.FORBIDDEN,
                within=30,
                what="the key refused",
            )
    finally:
        stopped = shell.run(stop)
        if separate is not None:
            goes_on = separate.poll() is None
            separate.terminate()
            separate.wait(timeout=60)
    assert goes_on
    assert f"worker {worker} was started separately and goes on" in stopped
    assert f"with: kill {separate.pid}" in stopped

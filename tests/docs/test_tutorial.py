"""The tutorial works as it is written: its commands, its flows, and what it says that one sees."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet_testkit.documented_commands import REPOSITORY, CommandShell
from fleet_testkit.nats_server import free_port
from fleet_testkit.runs import wait_ended
from fleet_testkit.waiting import wait_until

pytestmark = pytest.mark.long

TUTORIAL = REPOSITORY / "docs" / "tutorial"


@pytest.fixture
def shell(short_path: Path) -> CommandShell:
    """The commands name a folder with the flows of the tutorial, and free ports."""
    flows = short_path / "my_flows"
    flows.mkdir()
    page = (TUTORIAL / "own-flow.md").read_text()
    names = dict.fromkeys(re.findall(r"`my_flows/(\w+\.py)`", page))
    for name, code in zip(names, _blocks(page, "python"), strict=True):
        (flows / name).write_text(code)
    instead = {
        "my_flows": str(flows),
        "10.0.0.5": "127.0.0.1",
        "4222": str(free_port()),
        "b-1.nk": str(short_path / "b-1.nk"),
    }
    return CommandShell(short_path, instead)


def _blocks(text: str, language: str = "") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [content for of, content in found if of == language]


def _commands(page: str) -> list[str]:
    return _blocks((TUTORIAL / page).read_text())


def test_the_first_run(shell: CommandShell) -> None:
    start, _, submit, look, underneath, follow, cancel = _commands("first-run.md")
    shell.run(f"{start.strip()} --detach")
    try:
        ended = json.loads(shell.run(submit))
        assert (ended["status"], ended["result"]) == ("COMPLETED", "Hello, Ada!")
        of_this_run = f"RUN={ended['run_id']}"
        seen = shell.run(re.sub(r"RUN=\S+", of_this_run, look))
        assert "[greet] Hello, Ada!" in seen
        assert '"status":"COMPLETED","result":"Hello, Ada!"' in shell.run(f"{of_this_run}\n{underneath}")
        assert json.loads(shell.run(follow))["status"] == "COMPLETED"
        assert json.loads(shell.run(cancel))["status"] == "CANCELLED"
    finally:
        shell.run("./fleet down")


def test_a_flow_of_ones_own(shell: CommandShell) -> None:
    check, start, fail, stop = _commands("own-flow.md")
    assert '"Nara: 21 °C"' in shell.run(check)
    try:
        assert json.loads(shell.run(start).splitlines()[-1])["result"] == "Nara: 21 °C"
        attempts = json.loads(shell.run(fail).splitlines()[-1])
        assert [attempt["attempt"] for attempt in attempts["attempts"]] == list(
            range(1, len(attempts["attempts"]) + 1)
        )
        assert attempts["status"] in ("COMPLETED", "FAILED")
        assert len(attempts["attempts"]) == attempts["failures"] + (attempts["status"] == "COMPLETED")
    finally:
        shell.run(stop)


def test_a_worker_on_another_machine(shell: CommandShell) -> None:
    start, invite, work, use, wait, clean_up = _commands("two-machines.md")
    shell.run(start)
    worker: subprocess.Popen[bytes] | None = None
    try:
        shell.run(invite)
        worker = shell.start(work)
        with httpx.Client(base_url=f"http://127.0.0.1:{shell.port}", timeout=30) as client:
            wait_until(lambda: "b-1" in client.get("/workers").text, within=60, what="the worker in the list")
            assert json.loads(shell.run(use).splitlines()[-1])["worker_id"] == "b-1"
            _stop(worker)

            run_id = json.loads(shell.run(wait))["run_id"]

            def run() -> dict[str, Any]:
                answer: dict[str, Any] = client.get(f"/runs/{run_id}").json()
                return answer

            wait_until(lambda: run()["waiting_reason"] == "no_worker", within=60, what="the reason of the waiting")
            assert run()["status"] == "PENDING"
            worker = shell.start(work)
            [ended] = wait_ended(client, [run_id], within=60)
            assert ended["status"] == "COMPLETED"
    finally:
        if worker is not None:
            _stop(worker)
        shell.run(clean_up)


def _stop(worker: "subprocess.Popen[bytes]") -> None:
    worker.terminate()
    worker.wait(timeout=60)

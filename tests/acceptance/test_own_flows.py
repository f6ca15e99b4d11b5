"""Flows of a folder that one edits, seen through the gateway: reload, coroutines, and output of every kind."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.fleet import Fleet
from fleet_testkit.runs import Snapshot, submit, wait_ended, wait_status
from fleet_testkit.waiting import wait_until
from fleet_testkit.worker_process import WorkerProcess

_ID = "edited"
_SHOP = """
import os
import time
from pyoco import Flow, task

@task
def sell(gate=None):
    '''Sell at the price of version {version}.'''
    deadline = time.monotonic() + 60
    while gate and not os.path.exists(gate) and time.monotonic() < deadline:
        time.sleep(0.01)
    return {version}

flow = Flow("shop") >> sell
"""
_OTHERS = """
import asyncio
import ctypes
import os
import subprocess
from pyoco import Flow, task

@task
async def wait():
    print("waiting")
    try:
        await asyncio.sleep(60)
    finally:
        print("tidied up")

@task
def speak():
    print("printed")
    subprocess.run(["echo", "from a subprocess"], check=True)
    os.write(1, b"from the descriptor\\n")
    ctypes.CDLL(None).printf(b"from native code\\n")

waiting = Flow("waiting") >> wait
speaking = Flow("speaking_aloud") >> speak
"""


@dataclass
class Editor:
    """A worker, and the folder that it loads its flows from."""

    fleet: Fleet
    shop: Path

    def edit(self, text: str) -> None:
        self.shop.write_text(text)

    def get(self, path: str) -> Any:
        return self.fleet.client.get(path).raise_for_status().json()

    def submit(self, flow: str, **params: object) -> str:
        return submit(self.fleet.client, flow, tag=_ID, **params)

    def ended(self, run_id: str) -> Snapshot:
        [run] = wait_ended(self.fleet.client, [run_id])
        return run

    def log_of(self, run_id: str) -> str:
        return self.fleet.client.get(f"/runs/{run_id}/logs").raise_for_status().text


@pytest.fixture(scope="module")
def editor(stack: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    folder = tmp_path_factory.mktemp("edited")
    flows = folder / "flows"
    flows.mkdir()
    (flows / "shop.py").write_text(_SHOP.format(version=1))
    (flows / "others.py").write_text(_OTHERS)
    with WorkerProcess(
        stack.nats_url, folder, _ID, tag=_ID, flows_dir=flows, slots=2, PYOCO_FLOWS_RELOAD="1"
    ) as worker:
        worker.wait_registered(stack.client)
        yield Editor(stack, flows / "shop.py")


def test_an_edit_is_for_new_runs_and_a_broken_one_for_none(editor: Editor, tmp_path: Path) -> None:
    held = editor.submit("shop", gate=str(tmp_path / "gate"))
    wait_status(editor.fleet.client, held, RunStatus.RUNNING)
    editor.edit(_SHOP.format(version=2))
    wait_until(lambda: "version 2" in editor.get("/flows/shop")["description"], what="the edited flow")
    assert editor.ended(editor.submit("shop"))["result"] == 2
    (tmp_path / "gate").touch()
    assert editor.ended(held)["result"] == 1
    editor.edit("flow = Flow(\n")

    def failures() -> list[dict[str, Any]]:
        return [one for one in editor.get("/flows")["reload_failures"] if _ID in one["workers"]]

    [failure] = wait_until(failures, what="why the edit is not in force")
    assert "shop.py could not be loaded: SyntaxError: " in failure["error"]
    assert "version 2" in editor.get("/flows/shop")["description"]
    assert editor.ended(editor.submit("shop"))["result"] == 2
    editor.edit(_SHOP.format(version=3))
    wait_until(lambda: not failures(), what="that all is well")
    assert editor.ended(editor.submit("shop"))["result"] == 3


def test_the_cancel_of_a_coroutine_lets_it_tidy_up(editor: Editor) -> None:
    run_id = editor.submit("waiting")
    wait_until(lambda: "waiting" in editor.log_of(run_id), what="the coroutine begun")
    begun = time.monotonic()
    editor.fleet.client.post(f"/runs/{run_id}/cancel").raise_for_status()
    run = editor.ended(run_id)
    # Far less than the grace period (30 s), after which its process would have been ended.
    assert time.monotonic() - begun < 20
    assert (run["status"], run["tasks"]) == ("CANCELLED", {"wait": "CANCELLED"})
    assert editor.log_of(run_id) == "waiting\ntidied up\n"


def test_output_of_programs_and_native_code_is_in_the_log(editor: Editor) -> None:
    run = editor.ended(editor.submit("speaking_aloud"))
    assert run["status"] == "COMPLETED"
    assert editor.log_of(run["run_id"]) == "printed\nfrom a subprocess\nfrom the descriptor\nfrom native code\n"

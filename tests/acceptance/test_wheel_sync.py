"""Code shipped by wheel, through the gateway: upload, run, upload the next version, delete, without a restart."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet_testkit.fleet import Fleet, MakesFleets
from fleet_testkit.runs import wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.wheels import build_wheel

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples" / "wheel"
SHOP = """
import os
import time

from pyoco import Flow, task

@task
def sell(file=None):
    deadline = time.monotonic() + 60
    while file and not os.path.exists(file) and time.monotonic() < deadline:
        time.sleep(0.02)
    return {version!r}

flow = Flow("shop") >> sell
"""


@pytest.fixture(scope="module")
def synced(new_fleet: MakesFleets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A worker that follows the registry; only notifications, not the clock, make it look."""
    env = {"PYOCO_WHEEL_SYNC_ENABLED": "1", "PYOCO_WHEEL_SYNC_INTERVAL_SEC": "600", "PYOCO_SLOTS": "2"}
    env |= {"PYOCO_FLOW_WAIT_SEC": "0"}
    with new_fleet(tmp_path_factory.mktemp("synced"), env=env) as fleet:
        yield fleet


def shop(folder: Path, version: str) -> Path:
    modules = {"shop.py": SHOP.format(version=version)}
    return build_wheel(folder, "shop", version, modules=modules, entry_points={"pyoco.flows": {"shop": "shop:flow"}})


def upload(stack: Fleet, wheel: Path) -> dict[str, Any]:
    with wheel.open("rb") as content:
        answer = stack.client.post("/wheels", files={"wheel": (wheel.name, content)})
    answer.raise_for_status()
    described: dict[str, Any] = answer.json()
    return described


def submit(stack: Fleet, flow_name: str, **params: Any) -> str:
    answer = stack.client.post("/runs", json={"flow_name": flow_name, "params": params})
    answer.raise_for_status()
    run_id: str = answer.json()["run_id"]
    return run_id


def run(stack: Fleet, flow_name: str, **params: Any) -> dict[str, Any]:
    [ended] = wait_ended(stack.client, [submit(stack, flow_name, **params)])
    return ended


def wheels_of(stack: Fleet, run_id: str) -> list[list[dict[str, Any]]]:
    answer = stack.client.get(f"/runs/{run_id}/attempts").json()
    return [attempt["wheels"] for attempt in answer["attempts"]]


def installed(stack: Fleet) -> list[str]:
    (worker,) = stack.client.get("/workers").json()
    return [wheel["name"] for wheel in worker["wheel_sync"]["installed_wheels"]]


def wait_installed(stack: Fleet, *names: str) -> None:
    wait_until(lambda: installed(stack) == list(names), within=30, what=f"{names} in force")


@pytest.mark.also_composed("the installer of the image, a read-only file system")
def test_versions_come_and_go_while_runs_go_on_and_every_attempt_records_its_wheels(
    synced: Fleet, tmp_path: Path, shared_folder: Path
) -> None:
    go = shared_folder / "go"
    before = synced.pid("worker-1")
    assert run(synced, "shop")["reason"] == "flow_not_found"
    first = upload(synced, shop(tmp_path, "1.0"))
    ended = run(synced, "shop")
    assert (ended["status"], ended["result"], ended["attempt"]) == ("COMPLETED", "1.0", 1), ended["error"]
    used = {"name": first["name"], "sha256_hex": first["sha256_hex"]}
    assert wheels_of(synced, ended["run_id"]) == [[used]]

    long_run = submit(synced, "shop", file=str(go))
    wait_until(
        lambda: synced.client.get(f"/runs/{long_run}").json()["status"] == "RUNNING", what="the long run begun"
    )
    second = upload(synced, shop(tmp_path, "2.0"))
    wait_installed(synced, second["name"])
    assert run(synced, "shop")["result"] == "2.0"
    go.touch()
    [ended] = wait_ended(synced.client, [long_run])
    assert (ended["status"], ended["result"], ended["attempt"]) == ("COMPLETED", "1.0", 1)
    assert wheels_of(synced, long_run) == [[used]]
    assert run(synced, "shop")["result"] == "2.0"

    for name in (second["name"], first["name"]):
        assert synced.client.delete(f"/wheels/{name}").status_code == 200
    wait_installed(synced)
    gone = run(synced, "shop")
    assert (gone["reason"], gone["attempt"]) == ("flow_not_found", 1)
    assert wheels_of(synced, gone["run_id"]) == [[]]
    assert run(synced, "hello")["status"] == "COMPLETED"
    assert synced.pid("worker-1") == before


def test_the_example_can_be_built_uploaded_and_run_as_its_readme_says(synced: Fleet, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(tmp_path), str(EXAMPLE)], check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    described = upload(synced, wheel)
    greeted = run(synced, "greeting", name="Ada")
    assert (greeted["status"], greeted["result"]) == ("COMPLETED", "Hello, Ada!"), greeted["error"]
    files = {"workflow": (EXAMPLE / "shout.yaml").read_bytes()}
    answer = synced.client.post("/runs/yaml", files=files, data={"flow_name": "shout"})
    answer.raise_for_status()
    [shouted] = wait_ended(synced.client, [answer.json()["run_id"]])
    assert shouted["result"] == "A TASK THAT CAME BY WHEEL", shouted["error"]
    synced.client.delete(f"/wheels/{described['name']}").raise_for_status()


def test_the_catalogue_says_what_flows_of_wheels_take_and_which_are_broken(synced: Fleet, tmp_path: Path) -> None:
    stall = {"stall.py": SHOP.format(version="1.0"), "bad.py": "import not_there\n"}
    flows = {"stall": "stall:flow", "bad": "bad:flow"}
    name = upload(synced, build_wheel(tmp_path, "stall", "1.0", modules=stall, entry_points={"pyoco.flows": flows}))[
        "name"
    ]

    def detail() -> dict[str, Any]:
        found: dict[str, Any] = synced.client.get("/flows/stall").json()
        return found

    flow = wait_until(lambda: (found := detail()).get("params_schema") and found, what="the flow described")
    assert list(flow["params_schema"]["properties"]) == ["file"]
    assert [node["name"] for node in flow["graph"]["nodes"]] == ["sell"]
    assert flow["versions"] == ["1.0"]
    refused = synced.client.post("/runs", json={"flow_name": "stall", "params": {"fill": 1}})
    assert refused.status_code == 422
    assert 'unknown parameter "fill" (did you mean "file"?); known: file' in refused.json()["error"]["message"]
    [broken] = [one for one in synced.client.get("/flows").json()["broken"] if "wheel stall" in one["place"]]
    assert (broken["place"], broken["exc_type"]) == ("the flow bad of wheel stall 1.0", "ModuleNotFoundError")
    failed = run(synced, "bad")
    assert (failed["status"], failed["reason"]) == ("FAILED", "flow_not_found")
    assert "No module named 'not_there'" in failed["error"]
    synced.client.delete(f"/wheels/{name}").raise_for_status()


@pytest.mark.embedded_only("a folder of the data dir; in a container it is the worker's own volume")
def test_wheels_are_kept_in_the_workers_folder_of_the_data_dir(synced: Stack, tmp_path: Path) -> None:
    name = upload(synced, build_wheel(tmp_path, "kept"))["name"]
    wait_until(lambda: name in installed(synced), within=30, what="the wheel in force")
    assert len(list(synced.data_dir.glob("workers/*/wheels/1/trees/kept-*/kept.py"))) == 1
    assert zipfile.is_zipfile(tmp_path / name)
    synced.client.delete(f"/wheels/{name}").raise_for_status()

"""A flows folder brings its own libraries and variables: for its runners, and for nobody else."""

import asyncio
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.waiting import eventually, wait_until
from fleet_testkit.wheels import build_wheel
from fleet_worker.boundary.runner_account import RunnerStart
from fleet_worker.sources.env_file import EnvFileUnusable, read_env_file
from fleet_worker.sources.libraries import Libraries
from fleet_worker.sources.requirements import LibrariesUnusable, Requirements
from fleet_worker.wheels.own_packages import own_packages

from .conftest import Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]
FLOW = """
from pyoco import Flow, task
import fleet_colours

@task
def paint():
    return fleet_colours.VERSION

flow = Flow("paint") >> paint
plain = Flow("plain") >> task(lambda: 1)
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that uv takes for all there is; needs no network."""
    folder = tmp_path / "index"
    for version in ("1.0", "2.0"):
        build_wheel(folder, "fleet_colours", version)
    build_wheel(folder, "fleet_thief", modules={"orjson.py": ""})
    build_wheel(folder, "fleet_old", requires=["orjson<1"])
    build_wheel(folder, "fleet_new", requires=[f"orjson=={own_packages()['orjson']}"])
    build_wheel(folder, "orjson", own_packages()["orjson"], modules={"orjson.py": "raise SystemExit"})
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "flows"
    folder.mkdir()
    return folder


async def test_runners_have_the_libraries_of_requirements_txt_and_another_is_installed_after_an_edit(
    desk: Desk, start_worker: StartWorker, index: Path, folder: Path
) -> None:
    (folder / "paint.py").write_text(FLOW)
    (folder / "requirements.txt").write_text("pyoco\nfleet-colours<2  # the old ones\n")
    worker = start_worker("w1", "--reload", flows_dir=str(folder))
    assert (await desk.wait_ended(await desk.submit("paint"))).result == "1.0"
    assert importlib.util.find_spec("fleet_colours") is None
    (folder / "requirements.txt").write_text("fleet-colours==3\n")

    async def error() -> str:
        record = await desk.worker_record("w1")
        return "" if record is None else str(record.flows_error)

    why = await eventually(error, until=lambda said: "cannot be installed" in said, within=30, what="the reason")
    assert "fleet-colours==3" in why
    assert (await desk.wait_ended(await desk.submit("paint"))).result == "1.0"
    (folder / "requirements.txt").write_text("fleet-colours\n")
    wait_until(lambda: "the flows were reloaded" in worker.log, within=30)
    assert (await desk.wait_ended(await desk.submit("paint"))).result == "2.0"
    said = [line["message"] for line in worker.log_lines if line["event"] == "flow_libraries"]
    assert said[0] == f"installing 1 requirement of {folder}/requirements.txt"
    assert said[1].startswith(f"installed 1 requirement of {folder}/requirements.txt in ")


async def test_a_worker_whose_libraries_cannot_be_installed_runs_the_flows_that_need_none(
    desk: Desk, start_worker: StartWorker, index: Path, folder: Path
) -> None:
    (folder / "paint.py").write_text(FLOW)
    (folder / "plain.py").write_text("from pyoco import Flow, task\nother = Flow('other') >> task(lambda: 1)\n")
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["fleet-colours>2"]\n')
    worker = start_worker("w1", flows_dir=str(folder))
    assert (await desk.wait_ended(await desk.submit("other"))).status is RunStatus.COMPLETED
    assert "flows that need other libraries cannot be run" in worker.log
    record = await desk.worker_record("w1")
    assert record is not None
    assert "pyproject.toml cannot be installed" in str(record.flows_error)


async def test_workers_that_share_a_folder_install_the_same_libraries_once(
    index: Path, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (folder / "base.txt").write_text("fleet-colours\n")
    (folder / "requirements.txt").write_text("-r base.txt\n")
    wanted = Requirements.of(folder, own_packages())
    assert wanted is not None
    workers = [Libraries(tmp_path / "cache", RunnerStart(), timeout_seconds=60) for _ in range(2)]
    trees = await asyncio.gather(*(worker.get(wanted) for worker in workers))
    assert trees[0] == trees[1]
    assert (trees[0] / "fleet_colours.py").read_text() == "VERSION = '2.0'\n"
    assert [*(trees[0] / "__pycache__").glob("fleet_colours.*.pyc")]
    assert caplog.text.count("installing") == 1
    (tmp_path / "cache" / f".install-{trees[0].name}-x").mkdir()
    (tmp_path / "cache" / ".install-other-x").mkdir()
    workers[1].keep_only(())
    # The environment is in use by the other worker, so somebody may install it.
    assert [left.name for left in (tmp_path / "cache").glob(".install-*")] == [f".install-{trees[0].name}-x"]
    os.utime(trees[0], (0, 0))
    workers[1].keep_only(())
    assert trees[0].is_dir()
    workers[0].keep_only(())
    assert not [*(tmp_path / "cache").glob(".install-*")]
    assert not trees[0].exists()
    (folder / "base.txt").write_text("fleet-colours<2\n")
    other = Requirements.of(folder, own_packages())
    assert other is not None
    assert await workers[0].get(other) != trees[0]


async def test_the_packages_of_the_worker_itself_stay_as_they_are(index: Path, folder: Path, tmp_path: Path) -> None:
    libraries = Libraries(tmp_path / "cache", RunnerStart(), timeout_seconds=60)

    async def install(text: str) -> Path | str:
        (folder / "requirements.txt").write_text(text)
        wanted = Requirements.of(folder, own_packages())
        assert wanted is not None
        try:
            return await libraries.get(wanted)
        except LibrariesUnusable as error:
            return str(error)

    assert "brings the module orjson, which would take the place of" in str(await install("fleet-thief\n"))
    assert "orjson" in str(await install("fleet-old\n"))
    tree = await install("fleet-new\n")
    assert isinstance(tree, Path)
    assert [file.name for file in tree.glob("*.py")] == ["fleet_new.py"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "pyoco\norjson>=1  # both are there\n"])
def test_nothing_is_installed_if_the_worker_has_all_that_is_asked_for(folder: Path, text: str) -> None:
    (folder / "requirements.txt").write_text(text)
    assert Requirements.of(folder, own_packages()) is None


def test_variables_are_read_as_people_write_them(tmp_path: Path) -> None:
    file = tmp_path / "flow.env"
    file.write_text("# keys\nexport A=1\nB = 'x # y' # z\n\nC=\"p\\q\"\nD=a#b # c\nE=\nF==\n")
    assert read_env_file(file) == {"A": "1", "B": "x # y", "C": "p\\q", "D": "a#b", "E": "", "F": "="}


@pytest.mark.parametrize("line", ["KEY", "1KEY=x", "KEY='hidden", "=x", "KEY='a'b", "PYOCO_TAGS=x"])
def test_a_line_that_is_none_is_refused_by_its_number_and_without_its_value(tmp_path: Path, line: str) -> None:
    file = tmp_path / "flow.env"
    file.write_text(f"A=1\n{line}\n")
    with pytest.raises(EnvFileUnusable, match="line 2: ") as refused:
        read_env_file(file)
    assert "hidden" not in str(refused.value)

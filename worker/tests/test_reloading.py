"""A worker loads edited flows: the next run has the new code, and a broken edit changes nothing."""

import asyncio
import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fleet_contracts.status import RunStatus
from fleet_contracts.worker_record import WorkerRecord
from fleet_testkit.waiting import eventually, wait_until
from fleet_worker.sources.copies import FolderCopies, TooLarge
from fleet_worker.sources.watching import watch_code, watch_file

from .conftest import Desk, WorkerProcess
from .one_runner import one_runner

StartWorker = Callable[..., WorkerProcess]
SHOP = """
import os
import time

from neighbour import VERSION
from pyoco import Flow, task

@task
def sell(file=None):
    deadline = time.monotonic() + 60
    while file and not os.path.exists(file) and time.monotonic() < deadline:
        time.sleep(0.02)
    price = open(os.path.join(os.path.dirname(__file__), "price.txt")).read()
    # In another form, which is not masked.
    key = os.environ.get("SHOP_KEY")
    return [VERSION, price, key and key.upper()]

@task
def fail():
    raise ValueError(__file__)

flow = Flow("shop") >> sell
failing = Flow("failing") >> fail
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    (folder / "neighbour.py").write_text("VERSION = 1\n")
    (folder / "price.txt").write_text("cheap")
    return folder


async def said(
    desk: Desk, worker: WorkerProcess, condition: Callable[[WorkerRecord], bool], what: str
) -> WorkerRecord:
    async def look() -> WorkerRecord | None:
        return await desk.worker_record(worker.worker_id)

    found = await eventually(look, until=lambda seen: seen is not None and condition(seen), within=30, what=what)
    assert found is not None
    return found


async def sold(desk: Desk) -> object:
    run = await desk.wait_ended(await desk.submit("shop"))
    assert run.status is RunStatus.COMPLETED, run.error
    return run.result


def count(worker: WorkerProcess, event: str) -> int:
    return sum(line["event"] == event for line in worker.log_lines)


def wait_reloaded(worker: WorkerProcess, times: int = 1) -> None:
    wait_until(lambda: count(worker, "flows_reloaded") >= times, within=30)


async def test_the_next_run_has_the_edited_code_and_a_run_in_progress_keeps_its_own(
    desk: Desk, start_worker: StartWorker, folder: Path, tmp_path: Path
) -> None:
    worker = start_worker("w1", "--reload", "--slots", "2", flows_dir=str(folder))
    held = await desk.submit("shop", file=str(tmp_path / "go"))
    await desk.wait_running(held)
    (folder / "neighbour.py").write_text("VERSION = 2\n")
    wait_reloaded(worker)
    (folder / "price.txt").write_text("dear")
    assert await sold(desk) == [2, "dear", None]
    (tmp_path / "go").touch()
    assert (await desk.wait_ended(held)).result == [1, "dear", None]
    failed = await desk.wait_ended(await desk.submit("failing"))
    assert "/flows/shop.py" in str(failed.error)
    logged = next(line for line in worker.log_lines if line.get("exc_type") == "ValueError")
    assert f'File "{folder}/shop.py", line' in logged["exc_traceback"]
    away = shutil.move(folder, tmp_path / "away")
    await said(desk, worker, lambda record: "No such file" in str(record.flows_error), "the missing folder")
    shutil.move(away, folder)
    await said(desk, worker, lambda record: record.flows_error is None, "a reload of the new folder")


async def test_a_broken_edit_keeps_the_version_in_force_for_new_runners_too_until_it_is_mended(
    desk: Desk, start_worker: StartWorker, folder: Path
) -> None:
    worker = start_worker("w1", "--reload", flows_dir=str(folder))
    assert await sold(desk) == [1, "cheap", None]
    (folder / "neighbour.py").write_text("VERSION = (\n")
    record = await said(desk, worker, lambda record: record.flows_error is not None, "why the edit is not in force")
    assert record.flows is not None
    assert "shop" in record.flows
    assert f"{folder}/shop.py could not be loaded: SyntaxError: " in str(record.flows_error)
    assert f"{folder}/neighbour.py:1" in str(record.flows_error)
    assert count(worker, "flows_reload_failed") == 1
    before = [runner.pid for runner in worker.runners()]
    for runner in worker.runners():
        runner.kill()
    wait_until(lambda: {r.pid for r in worker.runners() if r.status() != psutil.STATUS_ZOMBIE} - set(before))
    assert await sold(desk) == [1, "cheap", None]
    # A new file that is broken does not hold back the others.
    (folder / "extra.py").write_text("import no_such_library\n")
    (folder / "neighbour.py").write_text("VERSION = 2\n")
    await said(desk, worker, lambda record: "no_such_library" in str(record.flows_error), "the broken new file")
    assert await sold(desk) == [2, "cheap", None]
    (folder / "extra.py").unlink()
    await said(desk, worker, lambda record: record.flows_error is None, "that all is well")


async def test_an_edit_that_takes_a_working_flow_away_by_mistake_is_refused(
    desk: Desk, start_worker: StartWorker, folder: Path
) -> None:
    worker = start_worker("w1", "--reload", flows_dir=str(folder))
    assert await sold(desk) == [1, "cheap", None]
    shutil.copy(folder / "shop.py", folder / "shop2.py")
    await said(desk, worker, lambda record: "defined more than once" in str(record.flows_error), "the name taken")
    assert await sold(desk) == [1, "cheap", None]
    (folder / "shop2.py").unlink()
    (folder / "shop.py").write_text(f"{SHOP}\nflow.fleet = {{'rety': 3}}\n")
    await said(desk, worker, lambda record: "options are wrong" in str(record.flows_error), "the bad option")
    assert await sold(desk) == [1, "cheap", None]
    (folder / "shop.py").write_text(SHOP.replace('failing = Flow("failing") >> fail', ""))
    record = await said(desk, worker, lambda record: record.flows_error is None, "that all is well")
    assert record.flows == ["shop"]


async def test_without_reload_an_edit_has_its_effect_after_sighup(
    desk: Desk, start_worker: StartWorker, folder: Path, tmp_path: Path
) -> None:
    env_file = tmp_path / "flow.env"
    env_file.write_text("SHOP_KEY='four and more'\n")
    worker = start_worker("w1", "--flow-env", str(env_file), flows_dir=str(folder))
    assert await sold(desk) == [1, "cheap", "FOUR AND MORE"]
    assert "SHOP_KEY" not in psutil.Process(worker.process.pid).environ()
    (folder / "neighbour.py").write_text("VERSION = 2\n")
    for runner in worker.runners():
        runner.kill()
    assert await sold(desk) == [1, "cheap", "FOUR AND MORE"]
    env_file.write_text("PYOCO_X=1\n")
    worker.process.send_signal(signal.SIGHUP)
    await said(desk, worker, lambda record: "line 1: PYOCO_X is" in str(record.flows_error), "the bad line")
    env_file.write_text("SHOP_KEY=other\n")
    worker.process.send_signal(signal.SIGHUP)
    wait_reloaded(worker)
    assert await sold(desk) == [2, "cheap", "OTHER"]
    assert worker.stop() == 0


def test_a_copy_has_the_code_and_links_to_everything_else(tmp_path: Path) -> None:
    original = tmp_path / "flows"
    for file in ("a.py", "package/__init__.py", "package/table.csv", "data/x.csv", ".git/hook.py", "env/lib.py"):
        (original / file).parent.mkdir(parents=True, exist_ok=True)
        (original / file).write_text("old")
    (original / "env" / "pyvenv.cfg").touch()
    with FolderCopies.kept_in(tmp_path / "copies", original, None) as copies:
        first = copies.make()
        assert (first.folder.name, copies.make().digest) == ("flows", first.digest)
        for file in ("a.py", "package/table.csv"):
            (original / file).write_text("new")
        assert (first.folder / "a.py").read_text() == "old"
        assert (first.folder / "package" / "table.csv").read_text() == "new"
        assert all((first.folder / name).is_symlink() for name in ("data", ".git", "env"))
        assert copies.make().digest != first.digest
        edited = copies.make().digest
        (original / "data" / "y.csv").touch()
        (original / ".swap").touch()
        assert copies.make().digest == edited
        (original / "package" / "new.csv").touch()
        assert copies.make().digest != edited
        copies.keep_only([str(first.folder)])
        assert [place.name for place in first.folder.parents[1].iterdir() if place.is_dir()] == ["1"]
        # Code that cannot be read leaves no part of a copy behind.
        os.mknod(original / "z.py", stat.S_IFSOCK)
        with pytest.raises(OSError):
            copies.make()
        assert [place.name for place in first.folder.parents[1].iterdir() if place.is_dir()] == ["1"]
        for number in range(5001):
            (original / "data" / str(number)).touch()
        with pytest.raises(TooLarge):
            copies.make()
    assert not first.folder.exists()


async def test_a_copy_is_imported_under_the_name_of_its_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, version in ((tmp_path / "flows", 2), (tmp_path / "copies" / "flows", 1)):
        folder.mkdir(parents=True)
        (folder / "common.py").write_text(f"VERSION = {version}\n")
        (folder / "shop.py").write_text(
            "from pyoco import Flow, task\nfrom flows.common import VERSION\n"
            "@task\ndef sell():\n    return VERSION\nflow = Flow('shop') >> sell\n"
        )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    copied, shown_as = str(tmp_path / "copies" / "flows"), str(tmp_path / "flows")
    async with one_runner(tmp_path, flows_dir=copied, flows_shown_as=shown_as) as runner:
        assert (await runner.run("shop")).done.result == 1


async def test_a_mounted_file_is_watched_through_its_links(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "flow.env").write_text(f"A={version}")
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "flow.env").symlink_to("..data/flow.env")
    (tmp_path / "next").symlink_to("2")
    noticed = [asyncio.Event(), asyncio.Event()]
    watching = [
        asyncio.create_task(watch_file(tmp_path / "flow.env", noticed[0].set)),
        asyncio.create_task(watch_code(tmp_path, noticed[1].set, apart_from=tmp_path / "own")),
    ]
    async with asyncio.timeout(30):
        for event in noticed:
            await event.wait()  # that it has begun
            event.clear()
        (tmp_path / "next").rename(tmp_path / "..data")
        for event in noticed:
            await event.wait()
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)


async def test_code_is_watched_and_which_other_files_there_are_beside_it(tmp_path: Path) -> None:
    flows, table = tmp_path / "flows.py", tmp_path / "table.csv"
    flows.touch()
    noticed = asyncio.Event()
    watching = asyncio.create_task(watch_code(tmp_path, noticed.set, apart_from=tmp_path / "own"))
    async with asyncio.timeout(30):
        await noticed.wait()  # that it has begun
        for change in (table.touch, lambda: flows.write_text("x = 1"), table.unlink):
            noticed.clear()
            change()
            await noticed.wait()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


def test_copies_inside_of_the_flows_folder_are_not_copied(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    with (
        FolderCopies.kept_in(tmp_path / "copies", tmp_path, None) as ours,
        FolderCopies.kept_in(tmp_path / "copies", tmp_path, None) as others,
    ):
        digest = ours.make().digest
        others.make()
        assert ours.make().digest == digest

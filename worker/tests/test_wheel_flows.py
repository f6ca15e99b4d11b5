"""What a runner makes of its wheels: what may be imported, which flow a name means, what a workflow file may call."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet_contracts.dead_letter import DeadLetterReason
from fleet_testkit.waiting import eventually
from fleet_testkit.wheels import build_wheel
from fleet_worker.boundary.frames import Setup
from fleet_worker.boundary.wheel_set import WheelSet
from fleet_worker.pool.pool import RunnerPool
from fleet_worker.runner.loading.callables import CallableNotAllowed, Callables
from fleet_worker.runner.loading.flows import FlowNotFound, Flows, FolderFlows
from fleet_worker.runner.loading.import_path import add_to_path
from fleet_worker.runner.loading.wheel_flows import WheelFlows
from fleet_worker.wheels.install import install

FLOWS = """
from pyoco import Flow, task

@task
def one():
    return 1

flow = Flow("anything") >> one
made = []

def make():
    made.append(1)
    return Flow(f"made {len(made)}") >> one

def fail():
    raise RuntimeError("not today")
"""


@pytest.fixture(autouse=True)
def _own_environment(own_modules: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("PYTHONPATH", "/before")


class Trees:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.paths: list[str] = []

    async def add(self, name: str, modules: dict[str, str], **groups: dict[str, str]) -> Path:
        entry_points = {group.replace("_", ".", 1): names for group, names in groups.items()}
        file = build_wheel(self._folder, name, modules=modules, entry_points=entry_points)
        tree = self._folder / f"tree-{name}"
        await install(file, into=tree, scratch=self._folder, timeout_seconds=60)
        self.paths.append(str(tree))
        return tree


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path)


async def test_wheels_come_after_the_standard_library_and_before_installed_packages(trees: Trees) -> None:
    tree = await trees.add(
        "acme", {"acme.py": "", "json/__init__.py": "raise SystemExit", "pytest/__init__.py": "X = 1"}
    )
    add_to_path(trees.paths)
    import acme  # type: ignore[import-not-found]

    assert acme.__file__ == str(tree / "acme.py")
    assert json.__file__ is not None
    places = [Path(entry).name for entry in sys.path]
    assert sys.path.index(str(tree)) < places.index("site-packages")
    standard = next(entry for entry in sys.path if (Path(entry) / "json" / "decoder.py").exists())
    assert sys.path.index(standard) < sys.path.index(str(tree))
    assert os.environ["PYTHONPATH"] == f"/before{os.pathsep}{tree}"


async def test_a_name_means_the_workers_own_flow_first_and_then_that_of_the_first_wheel(
    trees: Trees, tmp_path: Path
) -> None:
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "own.py").write_text(
        "from pyoco import Flow, task\n@task\ndef two(): return 2\nx = Flow('own') >> two\n"
    )
    await trees.add("acme", {"acme.py": FLOWS}, pyoco_flows={"own": "acme:flow", "plain": "acme:flow"})
    await trees.add(
        "zed", {"zed.py": FLOWS}, pyoco_flows={"plain": "zed:flow", "made": "zed:make", "events": "zed:flow"}
    )
    add_to_path(trees.paths)
    flows = WheelFlows(FolderFlows(folder), trees.paths)
    assert flows.names == ["made", "own", "plain"]
    assert [task.name for task in flows.resolve("own").tasks] == ["two"]
    assert [task.name for task in flows.resolve("plain").tasks] == ["one"]
    assert "acme" in sys.modules
    assert [flows.resolve("made").name, flows.resolve("made").name] == ["made 1", "made 2"]
    assert {what: failure.exc_message for what, failure in flows.broken.items()} == {
        "the flow own of wheel acme 1.0": "the worker has a flow of this name of its own, which is used",
        "the flow events of wheel zed 1.0": "it cannot be used: its name is reserved for the address /flows/events; "
        "give the flow another name",
        "the flow plain of wheel zed 1.0": "wheel acme 1.0 offers a flow of this name, too",
    }


async def test_nothing_of_a_wheel_is_imported_before_it_is_asked_for(trees: Trees) -> None:
    modules = {"bad.py": "import not_there\n", "good.py": FLOWS}
    flows = {"bad": "bad:flow", "gone": "good:gone", "none": "good:made", "failing": "good:fail", "good": "good:flow"}
    await trees.add("mixed", modules, pyoco_flows=flows)
    add_to_path(trees.paths)
    offered = WheelFlows(Flows(), trees.paths)
    assert offered.names == sorted(flows)
    assert not {"bad", "good"} & sys.modules.keys()
    assert offered.resolve("good").name == "anything"
    for name, said in {
        "bad": "flow 'bad' of wheel mixed 1.0 cannot be loaded (ModuleNotFoundError: No module named 'not_there'; ",
        "gone": "(AttributeError: module 'good' has no attribute 'gone'",
        "none": "good:made is a list, neither a Flow nor a function that returns one",
        "other": "flow 'other' is not known to this worker, which has no flows of its own; wheels offer: bad, fail",
    }.items():
        with pytest.raises(FlowNotFound) as failure:
            offered.resolve(name)
        assert said in str(failure.value)
        assert failure.value.reason is DeadLetterReason.FLOW_NOT_FOUND
    with pytest.raises(RuntimeError, match="not today"):
        offered.resolve("failing")


async def test_what_a_wheel_offers_is_described_by_an_import_of_it(trees: Trees) -> None:
    shop = (
        "from pyoco import Flow, task\n@task\ndef sell(price: float, item='cup'):\n    'Sell it.'\n    return item\n"
        "flow = Flow('any name') >> sell\nflow.fleet = {'retry': 3}\nwrong = Flow('wrong') >> sell\n"
        "wrong.fleet = {'a': 1}"
    )
    modules = {"bad.py": "import not_there\n", "good.py": FLOWS, "shop.py": shop}
    flows = {
        "bad": "bad:flow",
        "none": "good:made",
        "failing": "good:fail",
        "shop": "shop:flow",
        "wrong": "shop:wrong",
    }
    await trees.add("mixed", modules, pyoco_flows=flows)
    add_to_path(trees.paths)
    offered = WheelFlows(Flows(), trees.paths)
    offered.describe()
    catalogue = offered.catalogue()
    assert [offer.name for offer in catalogue.flows] == offered.names == sorted(flows)
    [sold] = [offer for offer in catalogue.flows if offer.params_schema is not None]
    assert (sold.name, sold.description, sold.source.package, sold.source.version) == (
        *("shop", "Sell it.", "mixed", "1.0"),
    )
    assert sold.params_schema is not None
    assert sold.params_schema["required"] == ["price"]
    assert sold.graph is not None
    assert sold.defaults.retry is not None
    assert {(one.place, one.exc_type) for one in catalogue.broken} == {
        ("the flow bad of wheel mixed 1.0", "ModuleNotFoundError"),
        ("the flow none of wheel mixed 1.0", "FlowNotFound"),
        ("the flow failing of wheel mixed 1.0", "RuntimeError"),
        ("the flow wrong of wheel mixed 1.0", "OptionsUnusable"),
    }
    assert set(offered.broken) == {one.place for one in catalogue.broken}


@pytest.mark.parametrize("ending", ["import os; os._exit(3)", "while True: pass"])
async def test_a_wheel_whose_import_ends_its_process_or_never_ends_leaves_the_names_in_the_catalogue(
    trees: Trees, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr("fleet_worker.pool.pool._TRIAL_SECONDS", 3.0)
    modules = {"bad.py": f"{ending}\n", "good.py": FLOWS}
    await trees.add("mixed", modules, pyoco_flows={"bad": "bad:flow", "good": "good:flow"})
    runs = tmp_path / "runs"
    runs.mkdir()
    pool = RunnerPool(Setup(None, None, str(runs), wheel_paths=[]), 1, WheelSet(paths=trees.paths))
    try:
        await pool.start()
        await eventually(lambda: "importing them failed" in caplog.text, what="why they are not described")
        assert [flow.name for flow in pool.catalogue.flows] == pool.flows == ["bad", "good"]
        assert pool.size == 1
    finally:
        await pool.stop()


async def test_wheels_are_described_after_the_runners_are_ready_and_leave_the_processor_to_them(
    trees: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, runs = tmp_path / "note", tmp_path / "runs"
    runs.mkdir()
    code = f"import os\nopen({str(note)!r}, 'w').write(str(os.nice(0)))\n{FLOWS}"
    await trees.add("good", {"good.py": code}, pyoco_flows={"good": "good:flow"})
    pool = RunnerPool(Setup(None, None, str(runs), wheel_paths=[]), 2, WheelSet(paths=trees.paths))
    ready: list[int] = []
    try_out = pool.try_out

    async def noted(*args: Any, **options: Any) -> Any:
        ready.append(pool.size)
        return await try_out(*args, **options)

    monkeypatch.setattr(pool, "try_out", noted)
    try:
        await pool.start()
        await eventually(lambda: any(flow.graph for flow in pool.catalogue.flows), what="the description")
        assert ready == [2]
        assert int(note.read_text()) == os.nice(0) + 10
    finally:
        await pool.stop()


async def test_workflow_files_may_call_what_lies_in_a_wheel_and_not_what_it_has_imported(trees: Trees) -> None:
    await trees.add(
        "acme",
        {
            "acme/__init__.py": "from os import getcwd\nfrom shutil import rmtree\n",
            "acme/tasks.py": "def f(): return 'f'\n",
            "shared_space/acme.py": "def g(): return 'g'\n",
            "single.py": "def h(): return 'h'\n",
        },
    )
    await trees.add("zed", {"shared_space/zed/__init__.py": "def i(): return 'i'\n"})
    add_to_path(trees.paths)
    callables = Callables(folders=[], modules=[], wheels=[Path(path) for path in trees.paths])
    for spec in ("acme.tasks:f", "shared_space.acme:g", "single:h", "shared_space.zed:i"):
        assert callables.load(spec)() == spec[-1]
    for spec in ("acme:getcwd", "acme:rmtree", "os:getcwd", "shared_space:x", "pyoco:task", "acme_not_there:f"):
        with pytest.raises(CallableNotAllowed):
            callables.load(spec)
    with pytest.raises(FlowNotFound, match=r"module acme\.nothing cannot be imported"):
        callables.load("acme.nothing:f")


async def test_plugins_of_wheels_are_allowed_and_a_broken_one_hides_no_other(trees: Trees) -> None:
    good = "def offer(registry):\n    registry.register_callable(lambda x=1: x, name='good/one')\n"
    await trees.add("good", {"good_plugin.py": good}, pyoco_tasks={"good": "good_plugin:offer"})
    await trees.add("bad", {"bad_plugin.py": "import not_there\n"}, pyoco_tasks={"bad": "bad_plugin:offer"})
    add_to_path(trees.paths)
    callables = Callables(folders=[], modules=[], wheels=[Path(path) for path in trees.paths])
    assert callables.load_plugin_task("good/one").name == "good/one"
    with pytest.raises(FlowNotFound) as failure:
        callables.load_plugin_task("bad/one")
    assert "plug-in bad failed: ModuleNotFoundError: No module named 'not_there'" in str(failure.value)

"""A worker follows the wheel registry: what arrives only by wheel runs, and no run fails because of it."""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from fleet_contracts.snapshot import RunSnapshot
from fleet_contracts.status import RunStatus
from fleet_contracts.worker_record import WheelSync
from fleet_testkit.nats_server import NatsServer
from fleet_testkit.stack import is_alive
from fleet_testkit.waiting import eventually, wait_until
from fleet_testkit.wheels import build_wheel
from fleet_worker.boundary.frames import Setup
from fleet_worker.pool.pool import RunnerPool
from fleet_worker.settings import WorkerSettings
from fleet_worker.wheels.home import WheelHome
from fleet_worker.wheels.sync import SyncedWheels

from .conftest import FLOWS, Desk, WorkerProcess
from .wheel_store import FAST, SHOP, WheelStore, pips_of, shop_wheel

pytestmark = pytest.mark.long

StartWorker = Callable[..., WorkerProcess]
YAML = """
version: 1
flow:
  graph: "{task}"
tasks:
  {task}:
    {how}
"""


@pytest.fixture
async def store(desk: Desk) -> WheelStore:
    return await WheelStore.make(desk)


@pytest.fixture
def syncing(start_worker: StartWorker, tmp_path: Path) -> StartWorker:
    """Start workers that follow the registry, each with a folder of its own."""

    def start(worker_id: str = "w1", *options: str, **env: str) -> WorkerProcess:
        return start_worker(worker_id, *options, **{**FAST, "PYOCO_WHEEL_SYNC_DIR": str(home_of(tmp_path)), **env})

    return start


def home_of(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


def trees_in(tmp_path: Path) -> list[str]:
    return sorted(tree.name.rpartition("-")[0] for tree in home_of(tmp_path).glob("*/trees/*"))


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def used(run: RunSnapshot) -> list[str]:
    return [wheel.name for wheel in run.wheels]


async def run_yaml(desk: Desk, text: str) -> RunSnapshot:
    job = desk.job("from_yaml").model_copy(update={"workflow_yaml": text})
    await desk.runs.create(job.run_id, RunSnapshot.pending(job, now=0.0).encode())
    await desk.queue(job)
    return await desk.wait_ended(job.run_id)


async def test_flows_of_a_wheel_run_and_the_attempt_records_which_wheels_it_had(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    wheel = shop_wheel(tmp_path / "in")
    await store.put(wheel, tags="gpu,default")
    await store.put(build_wheel(tmp_path / "in", "elsewhere"), tags="gpu")
    worker = syncing("w1")
    run = await desk.wait_ended(await desk.submit("shop"))
    assert (run.status, run.result, run.attempt) == (RunStatus.COMPLETED, "1.0", 1), worker.log
    assert [wheel.model_dump() for wheel in run.wheels] == [{"name": wheel.name, "sha256_hex": digest(wheel)}]
    made = await desk.wait_ended(await desk.submit("made"))
    assert made.result == "1.0"
    own = await desk.wait_ended(await desk.submit("tiny"))
    assert (own.status, used(own)) == (RunStatus.COMPLETED, [wheel.name])
    sync = await store.wait_installed("w1", wheel.name)
    (installed,) = sync.installed_wheels
    assert (installed.package, installed.version, installed.tags) == ("shop", "1.0", ["gpu", "default"])
    assert installed.sha256_hex == digest(wheel)
    assert (sync.enabled, sync.selected_count, sync.updated_count, sync.removed_count) == (True, 1, 1, 0)
    assert sync.selected_wheels == sync.updated_wheels == [wheel.name]
    assert sync.last_success_at is not None
    assert sync.last_error is None


async def test_the_wheels_of_an_attempt_are_recorded_from_its_claim_on_and_cost_no_write(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    name = await store.put(shop_wheel(tmp_path / "in"))
    syncing("w1")
    await store.wait_installed("w1", name)
    assert (await desk.wait_ended(await desk.submit("shop"))).status is RunStatus.COMPLETED
    written: list[RunSnapshot] = []

    async def note(msg: Msg) -> None:
        written.append(RunSnapshot.decode(msg.data))

    await desk.link.client.subscribe("$KV.pyoco_runs.*", cb=note)
    run_id = await desk.submit("shop")
    await desk.wait_ended(run_id)

    async def has_ended() -> bool:
        return bool(written) and written[-1].is_terminal

    await eventually(has_ended, what="the last write")
    recorded = [(run.status, used(run)) for run in written]
    assert recorded[0] == (RunStatus.PENDING, [])
    assert recorded[1] == (RunStatus.RUNNING, [name])
    assert recorded[-1] == (RunStatus.COMPLETED, [name])
    # More than three only for a run that a busy machine made long.
    assert len(recorded) <= 3 + int(((written[-1].end_time or 0.0) - (written[-1].start_time or 0.0)) / 0.25)


async def test_plugin_tasks_and_callables_of_a_wheel_run_from_workflow_files_without_an_allow_list(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    syncing("w1")
    missing = await run_yaml(desk, YAML.format(task="ask", how="callable: shop:price"))
    assert (missing.status, missing.reason) == (RunStatus.FAILED, "callable_not_allowed")
    await store.put(shop_wheel(tmp_path / "in"))
    # At once: nobody waits for the next sync.
    used_task = await run_yaml(desk, YAML.format(task="ask", how="use: shop/price"))
    assert (used_task.status, used_task.result) == (RunStatus.COMPLETED, "2 x 1.0"), used_task.error
    called = await run_yaml(desk, YAML.format(task="ask", how="callable: shop:price"))
    assert (called.status, called.result) == (RunStatus.COMPLETED, "2 x 1.0"), called.error
    stranger = await run_yaml(desk, YAML.format(task="ask", how="callable: os:getcwd"))
    assert stranger.reason == "callable_not_allowed"


async def test_a_run_that_was_submitted_right_after_an_upload_finds_its_flow_even_if_the_next_sync_is_far_away(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    worker = syncing("w1", "--slots", "2", PYOCO_WHEEL_SYNC_INTERVAL_SEC="600")
    assert (await desk.wait_ended(await desk.submit("tiny"))).status is RunStatus.COMPLETED
    wheel = shop_wheel(tmp_path / "in")
    await store.put(wheel)
    run_ids = [await desk.submit("shop") for _ in range(5)]
    runs = [await desk.wait_ended(run_id) for run_id in run_ids]
    assert {(run.status, run.result) for run in runs} == {(RunStatus.COMPLETED, "1.0")}, worker.log
    assert all(used(run) == [wheel.name] for run in runs)
    assert await desk.dead_letters() == []


async def test_an_upload_is_installed_at_once_even_if_the_next_sync_is_far_away(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    old = await store.put(shop_wheel(tmp_path / "in", "1.0"))
    syncing("w1", PYOCO_WHEEL_SYNC_INTERVAL_SEC="600")
    await store.wait_installed("w1", old)
    new = await store.put(shop_wheel(tmp_path / "in", "2.0"))
    await store.wait_installed("w1", new)
    assert (await desk.wait_ended(await desk.submit("shop"))).result == "2.0"


async def test_only_a_run_whose_flow_is_missing_costs_a_look_at_the_registry(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    await store.put(shop_wheel(tmp_path / "in"))
    syncing("w1", PYOCO_WHEEL_SYNC_INTERVAL_SEC="600")
    assert (await desk.wait_ended(await desk.submit("shop"))).status is RunStatus.COMPLETED
    looks: list[bytes] = []

    async def count(msg: Msg) -> None:
        looks.append(msg.data)

    await desk.link.client.subscribe("$JS.API.DIRECT.GET.OBJ_pyoco_wheels", cb=count)
    for run_id in [await desk.submit("shop") for _ in range(30)]:
        assert (await desk.wait_ended(run_id)).status is RunStatus.COMPLETED
    assert looks == []
    run_ids = [await desk.submit("nothing") for _ in range(30)]
    runs = [await desk.wait_ended(run_id) for run_id in run_ids]
    assert 1 <= len(looks) <= 30
    assert {run.reason for run in runs} == {"flow_not_found"}
    assert "wheels offer: made, shop" in (runs[0].error or "")


async def test_a_new_version_is_used_by_the_next_run_while_a_run_on_the_old_one_ends_on_it(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    old, new = shop_wheel(tmp_path / "in", "1.0"), shop_wheel(tmp_path / "in", "1.10")
    await store.put(old)
    worker = syncing("w1", "--slots", "3")
    long_runs = [await desk.submit("shop", file=str(tmp_path / "go")) for _ in range(2)]
    for run_id in long_runs:
        await desk.wait_running(run_id)
    await store.put(new)
    sync = await store.wait_installed("w1", new.name)
    assert (sync.updated_wheels, sync.removed_wheels) == ([new.name], [old.name])
    for _ in range(3):
        run = await desk.wait_ended(await desk.submit("shop"))
        assert (run.result, used(run)) == ("1.10", [new.name])
    assert trees_in(tmp_path) == ["shop", "shop"], "the old one is in use"
    (tmp_path / "go").touch()
    for run_id in long_runs:
        run = await desk.wait_ended(run_id)
        assert (run.status, run.result, run.attempt, used(run)) == (RunStatus.COMPLETED, "1.0", 1, [old.name])
    wait_until(lambda: trees_in(tmp_path) == ["shop"], what="the old tree removed")
    # The runners that were busy have been replaced.
    wait_until(lambda: len(worker.runners()) == 3, what="three runners")
    runs = [await desk.wait_ended(run_id) for run_id in [await desk.submit("shop") for _ in range(6)]]
    assert {run.result for run in runs} == {"1.10"}
    assert [line["event"] for line in worker.log_lines if line["level"] == "ERROR"] == ["flows_broken"]


async def test_no_run_fails_or_is_begun_twice_while_wheels_change_again_and_again(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    names = [await store.put(shop_wheel(tmp_path / "in", "1.0"))]
    worker = syncing("w1", "--slots", "2")
    await store.wait_installed("w1", names[0])
    run_ids: list[str] = []
    submitting = True

    async def submit() -> None:
        while submitting:
            run_ids.append(await desk.submit("shop" if len(run_ids) % 2 else "tiny"))
            await asyncio.sleep(0.02)

    crowd = asyncio.create_task(submit())
    for number in range(1, 5):
        names.append(await store.put(shop_wheel(tmp_path / "in", f"1.{number}")))
        await store.wait_installed("w1", names[-1])
    submitting = False
    await crowd
    runs = [await desk.wait_ended(run_id, within=60) for run_id in run_ids]
    assert {run.status for run in runs} == {RunStatus.COMPLETED}, worker.log
    assert len(runs) > 50
    assert {run.interruptions for run in runs} == {0}
    shops = [run for run in runs if run.flow_name == "shop"]
    assert all(used(run) == [f"shop-{run.result}-py3-none-any.whl"] for run in shops)
    # Of four switches none makes a run wait in vain for its runner; a busy machine may.
    assert sum(run.attempt > 1 for run in runs) <= 2


async def test_a_removed_wheel_disappears_and_an_older_one_takes_its_place(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    old = await store.put(shop_wheel(tmp_path / "in", "1.0"))
    new = await store.put(shop_wheel(tmp_path / "in", "2.0"))
    syncing("w1")
    assert (await desk.wait_ended(await desk.submit("shop"))).result == "2.0"
    await store.delete(new)
    await store.wait_installed("w1", old)
    assert (await desk.wait_ended(await desk.submit("shop"))).result == "1.0"
    await store.delete(old)
    sync = await store.wait_installed("w1")
    assert (sync.removed_wheels, sync.selected_count) == ([old], 0)
    run = await desk.wait_ended(await desk.submit("shop"))
    assert (run.status, run.reason, run.wheels) == (RunStatus.FAILED, "flow_not_found", [])
    wait_until(lambda: trees_in(tmp_path) == [], what="no tree left")


async def test_what_does_not_fit_is_skipped_with_a_reason_and_the_newest_that_fits_is_used(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    inside = tmp_path / "in"
    fits = await store.put(shop_wheel(inside, "1.0"))
    old_python = {
        "shop-2.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: shop\nVersion: 2.0\nRequires-Python: <3\n"
    }
    reasons = {
        await store.put(shop_wheel(inside, "2.0", members=old_python)): "it requires Python <3",
        await store.put(shop_wheel(inside, "3.0", python="cp39", abi="cp39", platform="win32")): "no tag of it fits",
        await store.put(build_wheel(inside, "pyoco", "99.0")): "the worker itself is made with pyoco",
        await store.put(
            build_wheel(inside, "sly", "1.0", modules={"fleet_worker/x.py": ""})
        ): "the module fleet_worker",
        await store.put(build_wheel(inside, "deep", "1.0"), name="no wheel.zip"): "its name cannot be read",
    }
    syncing("w1")
    run = await desk.wait_ended(await desk.submit("shop"))
    assert (run.result, used(run)) == ("1.0", [fits])
    sync = await store.wait_installed("w1", fits)
    assert sync.skipped_incompatible_count == len(reasons)
    assert {wheel.name for wheel in sync.skipped_incompatible} == reasons.keys()
    for wheel in sync.skipped_incompatible:
        assert reasons[wheel.name] in wheel.reason


async def test_a_failing_install_is_reported_once_and_the_set_before_stays_in_force_as_a_whole(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    inside = tmp_path / "in"
    good = await store.put(shop_wheel(inside, "1.0"))
    worker = syncing("w1")
    await store.wait_installed("w1", good)
    await store.put(shop_wheel(inside, "2.0"))
    await store.wait_installed("w1", "shop-2.0-py3-none-any.whl")
    bad = await store.put(build_wheel(inside, "bad", members={"bad-1.0.dist-info/WHEEL": b"Wheel-Version: 9.0\n"}))
    await store.put(shop_wheel(inside, "3.0"))

    failed = await store.wait_synced("w1", lambda sync: sync.last_result == "error", what="the failure in the record")
    assert bad in (failed.last_error or "")
    attempted = failed.last_attempt_at or 0.0
    again = await store.wait_synced(
        "w1", lambda sync: (sync.last_attempt_at or 0) > attempted + 1, what="two more tries"
    )
    assert [wheel.name for wheel in again.installed_wheels] == ["shop-2.0-py3-none-any.whl"]
    assert (await desk.wait_ended(await desk.submit("shop"))).result == "2.0"
    missing = await desk.wait_ended(await desk.submit("nothing"))
    assert "the last wheel sync failed" in (missing.error or "")
    logged = [line for line in worker.log_lines if line.get("err_id") == "ERR-PYOCO-0024"]
    assert len(logged) == 1, logged
    await store.delete(bad)
    await store.wait_installed("w1", "shop-3.0-py3-none-any.whl")
    assert (await desk.wait_ended(await desk.submit("shop"))).result == "3.0"


async def test_a_damaged_object_is_never_installed(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    good = await store.put(shop_wheel(tmp_path / "in", "1.0"))
    worker = syncing("w1")
    await store.wait_installed("w1", good)
    worker.stop()
    new = await store.put(shop_wheel(tmp_path / "in", "2.0"))
    await store.corrupt(new)
    worker = syncing("w1")
    failed = await store.wait_synced("w1", lambda sync: sync.last_result == "error", what="the damage in the record")
    assert "damaged" in (failed.last_error or "")
    assert (await desk.wait_ended(await desk.submit("shop"))).result == "1.0"
    assert any(line.get("err_id") == "ERR-PYOCO-0024" for line in worker.log_lines)


async def test_a_broken_wheel_breaks_only_what_it_offers_and_the_run_says_why(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    modules = {"ruin.py": "import not_there_at_all\n", "trap.py": "import os\nos._exit(3)\n"}
    flows = {"ruined": "ruin:flow", "trapped": "trap:flow", "tiny": "ruin:tiny", "number": "json:__name__"}
    entry_points = {"pyoco.flows": flows, "pyoco.tasks": {"ruin": "ruin:offer"}}
    await store.put(build_wheel(tmp_path / "in", "ruin", modules=modules, entry_points=entry_points))
    await store.put(shop_wheel(tmp_path / "in"))
    worker = syncing("w1")
    ruined = await desk.wait_ended(await desk.submit("ruined"))
    assert (ruined.status, ruined.reason) == (RunStatus.FAILED, "flow_not_found")
    assert "wheel ruin 1.0 cannot be loaded (ModuleNotFoundError: No module named 'not_there_at_all'" in (
        ruined.error or ""
    )
    [logged] = [line for line in worker.log_lines if line.get("run_id") == ruined.run_id and "err_id" in line]
    assert logged["message"] == "run failed: flow 'ruined' of wheel ruin 1.0 cannot be loaded (ModuleNotFoundError)"
    assert logged["exc_origin"].endswith("ruin.py:1 in <module>")
    number = await desk.wait_ended(await desk.submit("number"))
    assert "is a str, neither a Flow nor a function that returns one" in (number.error or "")
    assert (await desk.wait_ended(await desk.submit("trapped"))).status is RunStatus.FAILED
    for name in ("tiny", "shop"):
        assert (await desk.wait_ended(await desk.submit(name))).status is RunStatus.COMPLETED
    priced = await run_yaml(desk, YAML.format(task="ask", how="use: shop/price"))
    assert priced.status is RunStatus.COMPLETED
    (taken,) = [line for line in worker.log_lines if "the flow tiny of wheel ruin 1.0" in line["message"]]
    assert taken["event"] == "flows_broken"


async def test_a_restarted_worker_has_its_wheels_without_fetching_or_installing_anything(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    name = await store.put(shop_wheel(tmp_path / "in"))
    worker = syncing("w1")
    await store.wait_installed("w1", name)
    (tree,) = home_of(tmp_path).glob("*/trees/*")
    made = tree.stat().st_ino
    worker.kill()
    # Whatever would be fetched is not there any more; nothing has changed, though.
    info = await desk.link.jetstream.stream_info("OBJ_pyoco_wheels")
    await desk.link.jetstream.purge_stream("OBJ_pyoco_wheels", subject="$O.pyoco_wheels.C.>")
    assert info.state.messages > 1
    worker = syncing("w2")
    await store.wait_installed("w2", name)
    run = await desk.wait_ended(await desk.submit("shop"))
    assert (run.status, run.worker_id) == (RunStatus.COMPLETED, "w2")
    assert tree.stat().st_ino == made
    assert len(list(home_of(tmp_path).iterdir())) == 1


async def test_a_worker_killed_in_the_middle_of_an_install_leaves_nothing_that_is_ever_used(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    good = await store.put(shop_wheel(tmp_path / "in", "1.0"))
    worker = syncing("w1")
    await store.wait_installed("w1", good)
    # Enough files to be caught in the act.
    many = {f"shop/part{number}.py": f"X = {number}\n" * 50 for number in range(2500)}
    modules = {"shop/__init__.py": SHOP.format(version="2.0"), **many}
    new = await store.put(shop_wheel(tmp_path / "in", "2.0", modules=modules))

    (pip,) = wait_until(lambda: pips_of(worker.process.pid), within=30, what="pip at work")
    wait_until(lambda: list(home_of(tmp_path).glob("*/scratch/*/*")), what="something in the scratch folder")
    worker.kill()
    # It would have seconds of work left.
    wait_until(lambda: not is_alive(pip), within=10, what="pip gone with its agent")
    assert trees_in(tmp_path) == ["shop"]
    note = json.loads(next(home_of(tmp_path).glob("*/wheels.json")).read_text())
    assert [wheel["name"] for wheel in note["wheels"]] == [good]
    syncing("w1")
    await store.wait_installed("w1", new)
    assert (await desk.wait_ended(await desk.submit("shop"))).result == "2.0"
    assert not list(home_of(tmp_path).glob("*/scratch/*"))
    wait_until(lambda: trees_in(tmp_path) == ["shop"], what="the old tree removed")


async def test_an_install_that_takes_too_long_is_ended_with_all_its_processes(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    await store.put(shop_wheel(tmp_path / "in"))
    worker = syncing("w1", PYOCO_WHEEL_INSTALL_TIMEOUT_SEC="0.05")
    failed = await store.wait_synced("w1", lambda sync: sync.last_result == "error", what="the timeout in the record")
    assert "PYOCO_WHEEL_INSTALL_TIMEOUT_SEC" in (failed.last_error or "")
    assert (await desk.wait_ended(await desk.submit("tiny"))).status is RunStatus.COMPLETED
    assert worker.stop() == 0


@pytest.mark.own_nats
async def test_while_nats_is_away_the_wheels_stay_and_afterwards_the_registry_is_followed_again(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path, nats_server: NatsServer
) -> None:
    old = await store.put(shop_wheel(tmp_path / "in", "1.0"))
    worker = syncing("w1", "--slots", "2")
    await store.wait_installed("w1", old)
    nats_server.stop()

    async def is_logged() -> bool:
        lines = [line for line in worker.log_lines if line.get("event") == "wheel_sync_failed"]
        return any(line["err_id"] == "ERR-PYOCO-0003" for line in lines)

    await eventually(is_logged, what="the outage in the record")
    nats_server.start()
    async with asyncio.timeout(20):
        await desk.link.wait_ready()
    run = await desk.wait_ended(await desk.submit("shop"), within=30)
    assert (run.result, used(run)) == ("1.0", [old])
    new = await store.put(shop_wheel(tmp_path / "in", "2.0"))
    await store.wait_installed("w1", new)
    logged = [line for line in worker.log_lines if line.get("event") == "wheel_sync_failed"]
    assert len(logged) == 1


@pytest.mark.own_nats
async def test_a_run_that_misses_its_flow_while_nats_is_away_waits_until_it_is_back(
    desk: Desk, store: WheelStore, tmp_path: Path, nats_server: NatsServer
) -> None:
    states: list[WheelSync] = []
    settings = WorkerSettings(nats_url=nats_server.url, wheel_sync_interval_sec=0.2)
    pool = RunnerPool(Setup(None, None, str(tmp_path), wheel_paths=[]), slots=1)  # never started
    with WheelHome.taken(tmp_path / "home") as home:
        wheels = SyncedWheels(desk.link, settings, home, pool, on_state=states.append, stopping=asyncio.Event())
        keeping = asyncio.create_task(wheels.keep())
        async with asyncio.timeout(20):
            await wheels.has_begun.wait()
            await wheels.catch_up(time.monotonic())
        nats_server.stop()

        async def is_away() -> bool:
            return states[-1].last_result == "error"

        await eventually(is_away, what="the outage in the record")
        asking = asyncio.create_task(wheels.catch_up(time.monotonic()))
        attempts = len(states)

        async def has_tried() -> bool:
            return len(states) > attempts + 2

        await eventually(has_tried, what="more looks")
        assert not asking.done()
        nats_server.start()
        async with asyncio.timeout(20):
            await asking
        assert wheels.last_error is None
        keeping.cancel()


async def test_a_set_with_which_no_runner_can_be_started_is_not_put_in_force(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    resolver = tmp_path / "resolver.py"
    resolver.write_text(
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('tiny', {str(FLOWS / 'tiny.py')!r})\n"
        "tiny = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(tiny)\n"
        "try:\n    import extra\nexcept ModuleNotFoundError:\n    pass\n"
        "def find(name):\n    return {'tiny': tiny.tiny}[name]\n"
    )
    good = await store.put(shop_wheel(tmp_path / "in"))
    worker = syncing("w1", "--flow-resolver", f"{resolver}:find")
    await store.wait_installed("w1", good)
    await store.put(build_wheel(tmp_path / "in", "extra", modules={"extra.py": "raise RuntimeError('no extra')\n"}))
    failed = await store.wait_synced("w1", lambda sync: sync.last_result == "error", what="the failure in the record")
    assert "no runner can be started with extra-1.0" in (failed.last_error or "")
    assert "RuntimeError: no extra" in (failed.last_error or "")
    for name in ("tiny", "shop"):
        assert (await desk.wait_ended(await desk.submit(name))).status is RunStatus.COMPLETED, worker.log
    unknown = await desk.wait_ended(await desk.submit("nothing"))
    assert "is not known to the flow resolver" in (unknown.error or "")


async def test_a_wheel_that_is_replaced_under_its_name_is_installed_anew(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    modules = {"shop/__init__.py": SHOP.format(version="first")}
    name = await store.put(shop_wheel(tmp_path / "in", modules=modules))
    syncing("w1")
    assert (await desk.wait_ended(await desk.submit("shop"))).result == "first"
    before = (await store.wait_installed("w1", name)).installed_wheels[0]
    modules = {"shop/__init__.py": SHOP.format(version="second")}
    await store.put(shop_wheel(tmp_path / "in", modules=modules))
    sync = await store.wait_synced(
        "w1", lambda sync: sync.installed_wheels[0].nuid != before.nuid, what="the other content in force"
    )
    assert (sync.updated_wheels, sync.removed_wheels) == ([name], [])
    run = await desk.wait_ended(await desk.submit("shop"))
    assert run.result == "second"
    assert run.wheels[0].sha256_hex == sync.installed_wheels[0].sha256_hex != before.sha256_hex


async def test_a_worker_may_live_by_wheels_alone(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    name = await store.put(shop_wheel(tmp_path / "in"))
    syncing("w1", "--wheel-sync", flows_dir="", PYOCO_WHEEL_SYNC_ENABLED="0")
    run = await desk.wait_ended(await desk.submit("shop"))
    assert (run.result, used(run)) == ("1.0", [name])
    unknown = await desk.wait_ended(await desk.submit("tiny"))
    assert "which has no flows of its own; wheels offer: made, shop" in (unknown.error or "")


async def test_programs_that_a_task_starts_can_use_the_wheels_too(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    code = """
import subprocess
from pyoco import Flow, task

def main():
    print("a script of the wheel")

@task
def call():
    return subprocess.run(["tooled"], capture_output=True, text=True, check=True).stdout

flow = Flow("tooling") >> call
"""
    entry_points = {"console_scripts": {"tooled": "tooled:main"}, "pyoco.flows": {"tooling": "tooled:flow"}}
    await store.put(build_wheel(tmp_path / "in", "tooled", modules={"tooled.py": code}, entry_points=entry_points))
    syncing("w1")
    run = await desk.wait_ended(await desk.submit("tooling"))
    assert run.result == "a script of the wheel\n", run.error


async def test_workers_that_share_a_folder_do_not_touch_each_others_wheels(
    desk: Desk, store: WheelStore, syncing: StartWorker, tmp_path: Path
) -> None:
    name = await store.put(shop_wheel(tmp_path / "in"), tags="cpu")
    syncing("w1", "--tags", "cpu")
    syncing("w2", "--tags", "gpu")
    await store.wait_installed("w1", name)
    await store.wait_installed("w2")
    assert sorted(home.name for home in home_of(tmp_path).iterdir()) == ["1", "2"]
    assert trees_in(tmp_path) == ["shop"]


def test_a_folder_that_cannot_be_used_is_reported_at_the_start(syncing: StartWorker, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    worker = syncing("w1", PYOCO_WHEEL_SYNC_DIR=str(tmp_path / "file"))
    assert worker.process.wait(timeout=30) == 1
    assert "set PYOCO_WHEEL_SYNC_DIR to another folder" in worker.log

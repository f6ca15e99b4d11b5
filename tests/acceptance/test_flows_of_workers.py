"""Workers of one tag that know different flows: a run goes to one that knows its flow, or waits for one."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.fleet import Fleet, MakesFleets
from fleet_testkit.runs import Snapshot, read, submit, wait_ended, wait_status
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire
from fleet_testkit.worker_process import WorkerProcess

pytestmark = pytest.mark.long

_FLOW = """
import time
from pathlib import Path
from pyoco import Flow, task

@task
def work(seconds=0.0, gate=None):
    time.sleep(seconds)
    deadline = time.monotonic() + 60
    while gate and not Path(gate).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return "{name}"

flow = Flow("{name}") >> work
"""
_FLOW_WAIT_SECONDS = 10.0


@pytest.fixture(scope="module")
def fleet(new_fleet: MakesFleets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("flows")
    with new_fleet(folder, with_worker=False, env={"PYOCO_FLOW_WAIT_SEC": str(_FLOW_WAIT_SECONDS)}) as fleet:
        yield fleet


def flows_in(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text(_FLOW.format(name=name))
    return folder


class Crew:
    """Workers of one tag, each with flows of its own."""

    def __init__(self, fleet: Fleet, folder: Path, tag: str) -> None:
        self._fleet = fleet
        self._folder = folder
        self.tag = tag
        self._workers = ExitStack()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *error: object) -> None:
        self._workers.close()

    def add(self, name: str, *flows: str, broken: str | None = None, slots: int = 1) -> WorkerProcess:
        worker_id = f"{self.tag}-{name}"
        flows_dir = flows_in(self._folder / f"flows-of-{worker_id}", *flows)
        if broken is not None:
            (flows_dir / broken).write_text("import not_installed_here\n")
        worker = WorkerProcess(
            self._fleet.nats_url, self._folder, worker_id, tag=self.tag, flows_dir=flows_dir, slots=slots
        )
        self._workers.enter_context(worker)
        worker.wait_registered(self._fleet.client)
        return worker

    def submit(self, flow: str, **params: object) -> str:
        return submit(self._fleet.client, flow, tag=self.tag, **params)

    def wait_ended(self, *run_ids: str) -> list[Snapshot]:
        return wait_ended(self._fleet.client, run_ids, within=60)


def waited_seconds(run: Snapshot) -> float:
    return float(run["start_time"] - run["submitted_at"])


def test_every_run_gets_to_the_one_worker_that_knows_its_flow(fleet: Fleet, tmp_path: Path) -> None:
    with Crew(fleet, tmp_path, "shared") as crew:
        crew.add("rich", "common", "rare", slots=2)
        crew.add("poor", "common", slots=2)
        apart = [run for _ in range(20) for run in crew.wait_ended(crew.submit("rare"))]
        together = crew.wait_ended(*(crew.submit("rare", seconds=0.05) for _ in range(20)))
        # Of the worker that declines all of those.
        assert {run["status"] for run in crew.wait_ended(*(crew.submit("common") for _ in range(5)))} == {"COMPLETED"}
    assert {(run["status"], run["attempt"], run["worker_id"]) for run in [*apart, *together]} == {
        ("COMPLETED", 1, "shared-rich")
    }
    # Far less than a delivery would take that waits for AckWait (30 s).
    assert max(map(waited_seconds, [*apart, *together])) < 10.0
    assert Wire(fleet.nats_url).dead_letters("shared") == []


def test_a_run_waits_for_a_busy_worker_and_holds_up_no_other_flow(fleet: Fleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Crew(fleet, tmp_path, "busy") as crew:
        rich = crew.add("rich", "rare")
        gated = crew.submit("rare", gate=str(gate))
        wait_status(fleet.client, gated, RunStatus.RUNNING)
        crew.add("poor", "common")
        waiting = [crew.submit("rare") for _ in range(10)]
        wait_until(
            lambda: read(fleet.client, waiting[-1])["waiting_reason"] == "flow", what="the reason of the waiting"
        )
        assert "busy" in read(fleet.client, waiting[0])["waiting_detail"]
        [common] = crew.wait_ended(crew.submit("common"))
        assert common["status"] == "COMPLETED"
        assert waited_seconds(common) < 10.0
        opened_at = time.time()
        gate.touch()
        ended = crew.wait_ended(gated, *waiting)
        assert rich.is_running
    assert {(run["status"], run["attempt"], run["worker_id"]) for run in ended} == {("COMPLETED", 1, "busy-rich")}
    assert max(run["start_time"] for run in ended) < opened_at + 10.0
    assert Wire(fleet.nats_url).dead_letters("busy") == []


def test_a_long_queue_of_a_busy_workers_flow_holds_up_no_other_flow(fleet: Fleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Crew(fleet, tmp_path, "long") as crew:
        crew.add("rich", "rare", slots=4)
        gated = [crew.submit("rare", gate=str(gate)) for _ in range(4)]
        for run_id in gated:
            wait_status(fleet.client, run_id, RunStatus.RUNNING)
        # More than NATS lets out of the queue at once (200).
        waiting = [crew.submit("rare") for _ in range(250)]
        crew.add("poor", "common")
        crew.add("poorer", "common")
        for _ in range(3):
            [common] = crew.wait_ended(crew.submit("common"))
            assert common["status"] == "COMPLETED"
            assert waited_seconds(common) < 15.0
        gate.touch()
        ended = crew.wait_ended(*gated, *waiting)
    assert {(run["status"], run["attempt"], run["worker_id"]) for run in ended} == {("COMPLETED", 1, "long-rich")}
    assert Wire(fleet.nats_url).dead_letters("long") == []


def test_a_flow_that_nobody_knows_is_waited_for_and_the_error_names_the_broken_file(
    fleet: Fleet, tmp_path: Path
) -> None:
    with Crew(fleet, tmp_path, "nobody") as crew:
        crew.add("one", "common", broken="etl.py")
        [run] = crew.wait_ended(crew.submit("etl"))
        wire = Wire(fleet.nats_url)
        wait_until(lambda: wire.queued("nobody") == 0, what="the job acked")
        [letter] = wire.dead_letters("nobody")
    assert (run["status"], run["reason"], run["attempt"]) == ("FAILED", "flow_not_found", 1)
    assert run["end_time"] - run["submitted_at"] >= _FLOW_WAIT_SECONDS
    assert "flow 'etl' is offered by no live worker of the tag nobody; known flows: common" in run["error"]
    assert "etl.py could not be loaded: ModuleNotFoundError: No module named 'not_installed_here'" in run["error"]
    assert (letter.reason, letter.run_id, letter.error) == ("flow_not_found", run["run_id"], run["error"])


def test_a_worker_that_comes_while_a_run_waits_for_its_flow_executes_it(fleet: Fleet, tmp_path: Path) -> None:
    with Crew(fleet, tmp_path, "late") as crew:
        crew.add("poor", "common")
        run_id = crew.submit("rare")
        crew.add("rich", "rare")
        [run] = crew.wait_ended(run_id)
    assert (run["status"], run["attempt"], run["worker_id"]) == ("COMPLETED", 1, "late-rich")


@pytest.mark.embedded_only("kills NATS")
def test_runs_find_their_worker_although_nats_goes_away_in_the_middle(fleet: Stack, tmp_path: Path) -> None:
    """Attempts may be interrupted then, but none fails."""
    with Crew(fleet, tmp_path, "outage") as crew:
        crew.add("rich", "rare")
        crew.add("poor", "common")
        run_ids = [crew.submit("rare", seconds=0.1) for _ in range(20)]
        before = fleet.kill("nats")
        fleet.wait_restarted("nats", before=before)
        ended = crew.wait_ended(*run_ids)
    assert {(run["status"], run["worker_id"]) for run in ended} == {("COMPLETED", "outage-rich")}
    assert Wire(fleet.nats_url).dead_letters("outage") == []

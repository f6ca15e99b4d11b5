"""Workers of one tag that know different flows: a run goes to one that knows its flow, or waits for one."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fleet_testkit.fleet import Fleet, MakesFleets
from fleet_testkit.runs import Snapshot, read, submit, wait_ended
from fleet_testkit.waiting import wait_until
from fleet_testkit.wire import Wire
from fleet_testkit.worker_process import WorkerProcess

_FLOW = """
import time
from pyoco import Flow, task

@task
def work(seconds=0.0):
    time.sleep(seconds)
    return "{name}"

flow = Flow("{name}") >> work
"""
_FLOW_WAIT_SECONDS = 2.0


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
        flows_dir = flows_in(self._folder / worker_id, *flows)
        if broken is not None:
            (flows_dir / broken).write_text("import surely_not_installed\n")
        worker = WorkerProcess(
            self._fleet.nats_url, self._folder, f"{worker_id}-w", tag=self.tag, flows_dir=flows_dir, slots=slots
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
        [alone] = crew.wait_ended(crew.submit("common"))
        ended = []
        for _ in range(20):
            ended += crew.wait_ended(crew.submit("rare"))
        together = crew.wait_ended(*(crew.submit("rare") for _ in range(20)))
    runs = [alone, *ended, *together]
    assert {(run["status"], run["attempt"], run["worker_id"]) for run in runs[1:]} == {
        ("COMPLETED", 1, "shared-rich-w")
    }
    assert max(waited_seconds(run) for run in ended) < 1.0
    print(
        sorted(round(waited_seconds(run), 3) for run in ended),
        sorted(round(waited_seconds(run), 3) for run in together),
    )
    assert Wire(fleet.nats_url).dead_letters("shared") == []

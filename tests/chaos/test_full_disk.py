"""The disk of the data dir is full to its last byte: every submit is answered, and then work goes on by itself."""

import time
from pathlib import Path

import httpx
import psutil
import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.runs import submit, wait_ended, wait_status
from fleet_testkit.small_disk import SmallDisk
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

SUBMITS = 100
# The space that the streams reserve must fit on a small disk. As text: a line may be cut in two where the disk ended.
ENV = {
    "PYOCO_EVENTS_MAX_BYTES": "4000000",
    "PYOCO_DLQ_MAX_BYTES": "4000000",
    "PYOCO_LOG_FORMAT": "text",
    "PYOCO_DISK_FREE_MIN_BYTES": "20000000",
}


@pytest.mark.parametrize("disk", [96], indirect=True)
def test_a_full_disk_is_answered_and_afterwards_work_goes_on(
    disk: SmallDisk, flows_dir: Path, tmp_path: Path, marks: Path
) -> None:
    with Stack(disk.path / "data", "--slots", "1", env=ENV | {"PYOCO_FLOWS_DIR": str(flows_dir)}) as stack:
        gate = tmp_path / "gate"
        held = submit(stack.client, "gated", marks=str(marks), label="held", gate=str(gate))
        wait_status(stack.client, held, RunStatus.RUNNING)
        queued = submit(stack.client, "marked", marks=str(marks), label="queued")
        disk.fill()
        for number in range(SUBMITS):
            answer = stack.client.post("/runs", json={"flow_name": "marked", "params": {"label": f"no {number}"}})
            assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE, answer.text
            assert "no space left on the data disk" in answer.json()["detail"]
        health = stack.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (httpx.codes.OK, "degraded")
        assert "are free on the data disk" in health.json()["waiting_for"]["disk"]
        assert {run["run_id"] for run in stack.client.get("/runs").json()} == {held, queued}
        assert stack.client.get(f"/runs/{held}").json()["status"] == "RUNNING"
        # It ends, and NATS starts anew, while nothing can be written.
        gate.touch()
        launcher = psutil.Process(stack.status()["launcher_pid"])
        before = stack.kill("nats")
        # Seen from outside: the state file cannot be written either.
        wait_until(lambda: nats_of(launcher) - {before}, what="NATS started on the full disk")
        disk.free()
        freed = time.monotonic()
        after = wait_until(lambda: accepted(stack, marks), what="a submit accepted")
        ended = wait_ended(stack.client, [held, queued, after])
        print(f"the last run ended {time.monotonic() - freed:.1f} s after there was room again")
        assert {snapshot["status"] for snapshot in ended} == {"COMPLETED"}
        assert sorted(marks.read_text().split()) == ["after", "held", "queued"]
        stack.wait_healthy()
        assert stack.client.get("/health").json() == {"status": "ok", "waiting_for": {}}


def nats_of(launcher: psutil.Process) -> set[int]:
    return {child.pid for child in launcher.children() if child.name() == "nats-server"}


def accepted(stack: Stack, marks: Path) -> str | None:
    params = {"marks": str(marks), "label": "after"}
    try:
        answer = stack.client.post("/runs", json={"flow_name": "marked", "params": params})
    except httpx.TransportError:
        return None
    return str(answer.json()["run_id"]) if answer.status_code == httpx.codes.OK else None

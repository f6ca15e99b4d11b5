"""Any one part stands still or dies, with default settings: the last run has ended ten seconds after it is back."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet_testkit.chaos.retrying_submits import executions, submit_until_accepted
from fleet_testkit.ledger import accepted_run_ids
from fleet_testkit.process_pause import pause_process, resume_process
from fleet_testkit.runs import wait_ended
from fleet_testkit.stack import Stack
from fleet_testkit.waiting import wait_until

PROMISED_SECONDS = 10.0
PAUSE_SECONDS = 6.0
SUBMITTERS = 6


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, flows_dir: Path) -> Iterator[Stack]:
    """Parts stand still and die one after the other. Besides two workers: all defaults."""
    folder = tmp_path_factory.mktemp("recovering")
    with Stack(folder / "data", "--workers", "2", "--slots", "2", "--flows-dir", str(flows_dir)) as stack:
        yield stack


def stands_still(fleet: Stack, name: str) -> None:
    pid = fleet.pid(name)
    pause_process(pid)
    goes_on_at = time.monotonic() + PAUSE_SECONDS
    wait_until(lambda: time.monotonic() > goes_on_at, within=PAUSE_SECONDS + 30, what=f"the pause of {name} over")
    resume_process(pid)


def is_killed(fleet: Stack, name: str) -> None:
    """It is back when it is ready again, not when its process begins to load its modules."""
    before = fleet.kill(name)
    fleet.wait_restarted(name, before=before, within=60)
    wait_until(lambda: fleet.parts[name]["state"] == "healthy", within=60, what=f"{name} ready again")


@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *((name, fault) for name in ("nats", "runs-api", "worker-1") for fault in (stands_still, is_killed)),
        # Every request passes both of them.
        ("gateway", is_killed),
        ("auth", is_killed),
    ],
)
def test_the_last_run_ends_within_ten_seconds_after_the_part_is_back(
    name: str, fault: Callable[[Stack, str], None], fleet: Stack, marks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = accepted_run_ids(fleet)
    # The first half is under way when it happens, the second comes in meanwhile.
    under_way = {f"{name}-{fault.__name__}-{number}": 0.5 for number in range(SUBMITTERS)}
    meanwhile = {f"{name}-{fault.__name__}-later-{number}": 0.0 for number in range(SUBMITTERS)}
    with ThreadPoolExecutor(2 * SUBMITTERS + 1) as threads:

        def start(wanted: dict[str, float]) -> None:
            for label, seconds in wanted.items():
                submitting[label] = threads.submit(submit_until_accepted, fleet, label, marks, seconds=seconds)

        submitting: dict[str, Future[str]] = {}
        start(under_way)
        wait_until(marks.read_text, what="a run begun")
        healing = threads.submit(fault, fleet, name)
        start(meanwhile)
        healing.result()
        healed_at = time.monotonic()
        runs = {label: one.result() for label, one in submitting.items()}
    ended = wait_ended(fleet.client, runs.values(), within=60)
    took_seconds = time.monotonic() - healed_at
    with capsys.disabled():
        print(f"\n[figures] {name} {fault.__name__}: the last run had ended {took_seconds:.1f} s after it was back")
    assert {run["status"] for run in ended} == {"COMPLETED"}

    # A key is one run, and nothing but what was accepted was ever executed.
    wanted = under_way | meanwhile
    again = {label: submit_until_accepted(fleet, label, marks, seconds=wanted[label]) for label in wanted}
    assert again == runs
    assert accepted_run_ids(fleet) - before == set(runs.values())
    assert executions(marks).keys() == set(runs.items())
    assert took_seconds <= PROMISED_SECONDS
    fleet.wait_healthy()

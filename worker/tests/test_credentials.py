"""Names and NATS users for workers that are started alike."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet_testkit.waiting import wait_until
from fleet_worker.agent.credentials import NoCredentials, taken_from


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("worker-10", "worker-2", "worker-1"):
        file = tmp_path / f"{name}.nk"
        file.write_text("seed")
        file.chmod(0o400)
    return tmp_path


def test_each_living_worker_has_one_of_its_own(folder: Path) -> None:
    with taken_from(folder) as first, taken_from(folder) as second:
        assert (first.stem, second.stem) == ("worker-1", "worker-2")
        assert second == folder / "worker-2.nk"
        with taken_from(folder) as third:
            assert third.stem == "worker-10"
            with pytest.raises(NoCredentials, match="all 3 users"), taken_from(folder):
                pass
    with taken_from(folder) as again:
        assert again.stem == "worker-1"


def test_one_that_was_killed_leaves_its_own_to_others(folder: Path) -> None:
    program = "import sys, time; from pathlib import Path; from fleet_worker.agent.credentials import taken_from\n"
    program += "with taken_from(Path(sys.argv[1])) as own: print(own.stem, flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "worker-1"
        with taken_from(folder) as own:
            assert own.stem == "worker-2"
        other.kill()
        wait_until(lambda: other.poll() is not None, what="the other gone")
        with taken_from(folder) as own:
            assert own.stem == "worker-1"
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


def test_an_empty_folder_is_reported_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NoCredentials, match="PYOCO_WORKER_CREDENTIALS_DIR"), taken_from(tmp_path):
        pass


def test_the_command_says_it_as_well(tmp_path: Path) -> None:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYOCO_")}
    ended = subprocess.run(
        [sys.executable, "-c", "from fleet_worker.cli import main; main()", "--flows-dir", str(tmp_path)],
        env={**outside, "PYOCO_LOAD_DOTENV": "0", "PYOCO_WORKER_CREDENTIALS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "PYOCO_WORKER_CREDENTIALS_DIR" in ended.stderr
    assert "Traceback" not in ended.stderr

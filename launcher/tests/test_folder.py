"""The data folder: sockets with short paths, logs put aside, the lock, processes told apart."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleet_launcher.errors import LaunchError
from fleet_launcher.family import is_alive, started_at
from fleet_launcher.folder import DataFolder, remove_sockets
from fleet_launcher.state import locked


def test_sockets_lie_in_the_data_dir_for_nobody_else(short_path: Path) -> None:
    folder = DataFolder.at(short_path / "d")
    folder.prepare()
    folder.make_sockets()
    assert folder.sockets == short_path / "d" / "run"
    assert stat.S_IMODE(folder.sockets.stat().st_mode) == 0o700


def test_a_data_dir_with_a_long_path_gets_its_sockets_a_short_one(tmp_path: Path) -> None:
    folder = DataFolder.at(tmp_path / ("long" * 30))
    other = DataFolder.at(tmp_path / ("long" * 31))
    folder.prepare()
    folder.make_sockets()
    assert len(os.fsencode(folder.socket("workers-api"))) <= 100
    assert stat.S_IMODE(folder.sockets.stat().st_mode) == 0o700
    assert folder.sockets != other.sockets
    folder.socket("auth").touch()
    remove_sockets(folder.sockets)
    assert not folder.sockets.exists()


def test_a_short_path_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    folder = DataFolder.at(tmp_path / ("trap" * 30))
    (tmp_path / "elsewhere").mkdir()
    folder.sockets.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match="belongs to somebody else"):
        folder.make_sockets()
    folder.sockets.unlink()


def test_a_large_log_is_put_aside_at_the_next_start(tmp_path: Path) -> None:
    folder = DataFolder.at(tmp_path)
    folder.prepare()
    folder.log("nats").write_text("small")
    folder.rotate_log("nats")
    assert folder.log("nats").read_text() == "small"
    with folder.log("nats").open("r+b") as log:
        log.truncate(11 * 1024 * 1024)
    folder.rotate_log("nats")
    assert not folder.log("nats").exists()
    assert (folder.logs / "nats.log.1").stat().st_size == 11 * 1024 * 1024


def test_the_lock_admits_one_and_goes_when_its_holder_goes(tmp_path: Path) -> None:
    folder = DataFolder.at(tmp_path)
    with (
        locked(folder),
        pytest.raises(LaunchError, match=f"in use by the stack with pid {os.getpid()}"),
        locked(folder),
    ):
        pass
    assert not folder.lock.exists()
    with locked(folder):
        pass


def test_a_process_that_got_the_pid_of_another_is_not_mistaken_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        begun = started_at(process.pid)
        assert begun is not None
        assert is_alive(process.pid, begun)
        assert not is_alive(process.pid, begun - 60)
    assert not is_alive(process.pid, begun)
    assert started_at(process.pid) is None
    assert time.time() - begun < 60

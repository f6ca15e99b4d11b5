"""The data folder: sockets with short paths, rotated logs, the lock, processes that reuse a pid."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleet_kit.files.disk import DiskLimits
from fleet_launcher.data_dir.disk import check_disk
from fleet_launcher.data_dir.folder import DataFolder, remove_sockets
from fleet_launcher.data_dir.state import locked
from fleet_launcher.errors import LaunchError
from fleet_launcher.part_processes import is_alive, started_at


def test_sockets_lie_in_the_data_dir_for_nobody_else(short_path: Path) -> None:
    folder = DataFolder(short_path / "d")
    folder.prepare()
    folder.make_sockets()
    assert folder.sockets == short_path / "d" / "run"
    assert stat.S_IMODE(folder.sockets.stat().st_mode) == 0o700


def test_a_data_dir_that_is_open_to_others_is_closed_and_that_is_said(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "d")
    assert folder.prepare() is None
    folder.credentials.mkdir()
    folder.path.chmod(0o755)
    assert folder.prepare() == f"closed the data dir {folder.path} to other users: its mode was 755"
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert folder.prepare() is None


def test_a_folder_that_others_use_for_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "theirs").touch()
    with pytest.raises(LaunchError, match="what is in it is not of a stack; choose a folder of its own"):
        DataFolder(tmp_path).prepare()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o777
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_a_data_dir_of_another_user_is_refused(tmp_path: Path) -> None:
    theirs = Path("/")
    if os.geteuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, 65534, 65534)
    with pytest.raises(LaunchError, match=f"the data dir {theirs} belongs to another user"):
        DataFolder(theirs).prepare()


def test_a_data_dir_with_a_long_path_gets_its_sockets_a_short_one(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / ("long" * 30))
    other = DataFolder(tmp_path / ("long" * 31))
    folder.prepare()
    folder.make_sockets()
    assert len(os.fsencode(folder.socket("workers-api"))) <= 100
    assert stat.S_IMODE(folder.sockets.stat().st_mode) == 0o700
    assert folder.sockets != other.sockets
    folder.socket("auth").touch()
    remove_sockets(folder.sockets)
    assert not folder.sockets.exists()


def test_a_disk_that_is_nearly_full_is_reported_and_a_full_one_refused(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    assert check_disk(folder, DiskLimits(disk_free_min_bytes=0, disk_free_warn_bytes=0)) is None
    warning = check_disk(folder, DiskLimits(disk_free_min_bytes=0, disk_free_warn_bytes=2**60))
    assert warning is not None
    assert "are free on the disk of the data dir" in warning
    with pytest.raises(LaunchError, match="free some, choose another --data-dir, or lower PYOCO_DISK_FREE"):
        check_disk(folder, DiskLimits(disk_free_min_bytes=2**60))


def test_a_short_path_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / ("trap" * 30))
    (tmp_path / "elsewhere").mkdir()
    folder.sockets.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match="belongs to somebody else"):
        folder.make_sockets()
    folder.sockets.unlink()


def test_a_large_log_is_put_aside_at_the_next_start(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
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
    folder = DataFolder(tmp_path)
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

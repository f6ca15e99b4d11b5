"""The room that NATS gets on the data dir's disk, and streams that may grow beyond it."""

import json
import shutil
from pathlib import Path

import pytest

from fleet_launcher.data_dir.disk import check_room, nats_room
from fleet_launcher.data_dir.folder import DataFolder
from fleet_launcher.errors import LaunchError
from fleet_launcher.settings import LauncherSettings

HUGE = 10**15


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path)


def settings(**limits: int) -> LauncherSettings:
    return LauncherSettings.model_construct(**{"dlq_max_bytes": 1, "events_max_bytes": 1, **limits})


def has_stream(folder: DataFolder, name: str, *, max_bytes: int) -> None:
    stream = folder.nats_store / "jetstream" / "FLEET" / "streams" / name
    stream.mkdir(parents=True)
    (stream / "meta.inf").write_text(json.dumps({"name": name, "max_bytes": max_bytes}))


def test_nats_gets_a_share_of_what_is_free_and_keeps_what_it_has(folder: DataFolder) -> None:
    free = shutil.disk_usage(folder.path).free
    assert 0 < nats_room(folder) < free
    folder.nats_store.mkdir(parents=True)
    with (folder.nats_store / "1.blk").open("wb") as block:
        block.truncate(10**12)  # takes no room
    assert nats_room(folder) > 10**12 * 0.7


@pytest.mark.parametrize("limit", ["dlq_max_bytes", "events_max_bytes"])
def test_streams_that_the_disk_cannot_hold_are_refused_before_they_are_made(folder: DataFolder, limit: str) -> None:
    assert check_room(folder, settings()) is None
    with pytest.raises(
        LaunchError, match=r"may take 931322\.\d\d GiB .* has \d+\.\d\d GiB for NATS; free some space"
    ):
        check_room(folder, settings(**{limit: HUGE}))
    has_stream(folder, "PYOCO_EVENTS", max_bytes=HUGE)
    with pytest.raises(LaunchError, match="lower one of the two, or choose another disk with --data-dir"):
        check_room(folder, settings())


def test_streams_that_exist_already_are_only_warned_of(folder: DataFolder) -> None:
    has_stream(folder, "PYOCO_EVENTS", max_bytes=HUGE)
    has_stream(folder, "PYOCO_DLQ", max_bytes=1)
    warned = check_room(folder, settings())
    assert warned is not None
    assert warned.endswith("free some space before they grow so large")

"""Disk space of the data dir: how much of it NATS may use, and whether the streams fit into that."""

import json
import os

from fleet_contracts.nats_roles import FLEET_ACCOUNT
from fleet_kit.files.disk import DiskLimits, free_bytes, in_mib

from ..errors import LaunchError
from ..settings import LauncherSettings
from .folder import DataFolder

# The rest is for the ledger, logs, wheels and runs.
_SHARE_OF_NATS = 0.75
_GIB = 1024**3


def check_disk(folder: DataFolder, limits: DiskLimits) -> str | None:
    """Return a warning if the disk is nearly full; raise LaunchError if the stack would accept no runs."""
    free = free_bytes(folder.path)
    if free < limits.disk_free_min_bytes:
        raise LaunchError(
            f"only {in_mib(free)} are free on the disk of the data dir {folder.path}, and with less than "
            f"{in_mib(limits.disk_free_min_bytes)} no runs are accepted; free some, choose another --data-dir, "
            "or lower PYOCO_DISK_FREE_MIN_BYTES"
        )
    if free < limits.disk_free_warn_bytes:
        return (
            f"only {in_mib(free)} are free on the disk of the data dir {folder.path}; "
            f"below {in_mib(limits.disk_free_min_bytes)} no new runs are accepted"
        )
    return None


def nats_room(folder: DataFolder) -> int:
    """The bytes that the store of NATS may use: a share of the free space and its present size together."""
    stored = sum(
        os.stat(os.path.join(path, file)).st_size for path, _, files in os.walk(folder.nats_store) for file in files
    )
    return int((free_bytes(folder.path) + stored) * _SHARE_OF_NATS)


def check_room(folder: DataFolder, settings: LauncherSettings) -> str | None:
    """Refuse streams whose maximum size exceeds the space of NATS; return a warning if they exist already.

    NATS reserves the maximum size of a stream. It restores streams that no longer fit, but creates no new ones.
    """
    room = nats_room(folder)
    wanted = {settings.dlq_stream: settings.dlq_max_bytes, settings.events_stream: settings.events_max_bytes}
    made = {stream: held for stream in wanted if (held := _limit_of(folder, stream)) is not None}
    needed = sum((wanted | made).values())
    if needed <= room:
        return None
    short = (
        f"dead letters and events may take {_gib(needed)} (PYOCO_DLQ_MAX_BYTES, PYOCO_EVENTS_MAX_BYTES), "
        f"and the disk of {folder.path} has {_gib(room)} for NATS"
    )
    if made.keys() == wanted.keys():
        return f"{short}; free some space before they grow so large"
    raise LaunchError(f"{short}; free some space, lower one of the two, or choose another disk with --data-dir")


def _limit_of(folder: DataFolder, stream: str) -> int | None:
    """The maximum size of an existing stream in bytes; None if it does not exist."""
    meta = folder.nats_store / "jetstream" / FLEET_ACCOUNT / "streams" / stream / "meta.inf"
    try:
        return max(0, int(json.loads(meta.read_bytes())["max_bytes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"

"""The free space of a disk: how much is kept back for what was accepted, and when it is time to warn."""

import os
from pathlib import Path

from pydantic import BaseModel, Field

_MIB = 1024 * 1024


class DiskLimits(BaseModel):
    """How full the data disk may get; settings classes inherit it."""

    # With less nothing new is accepted: what was accepted needs room to come to its end.
    disk_free_min_bytes: int = Field(64 * _MIB, ge=0)
    disk_free_warn_bytes: int = Field(1024 * _MIB, ge=0)


def free_bytes(folder: Path) -> int:
    """What is free on the disk of a folder for whoever is not root."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def in_mib(count: int) -> str:
    """Rounded down: what is nearly nothing is shown as nothing."""
    return f"{count // _MIB} MiB"

"""Free disk space: the reserve that is kept for accepted runs, and the threshold of a warning."""

import os
from pathlib import Path

from pydantic import BaseModel, Field

_MIB = 1024 * 1024


class DiskLimits(BaseModel):
    """Limits of free space on the data disk; settings classes inherit them."""

    # Below this no run is accepted: the accepted ones need the space to finish.
    disk_free_min_bytes: int = Field(64 * _MIB, ge=0)
    disk_free_warn_bytes: int = Field(1024 * _MIB, ge=0)


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, without the blocks reserved for root."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def in_mib(count: int) -> str:
    """The size in MiB, rounded down."""
    return f"{count // _MIB} MiB"

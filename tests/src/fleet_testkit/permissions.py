"""Finds files of the fleet that other users of this machine may access."""

import stat
from pathlib import Path


def open_to_others(folder: Path) -> list[str]:
    """The paths in a folder, itself included, that grant any right to others than the owner."""
    found = []
    for path in (folder, *folder.rglob("*")):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue  # removed meanwhile by a running process
        if not stat.S_ISLNK(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            found.append(f"{path} {stat.filemode(mode)}")
    return found

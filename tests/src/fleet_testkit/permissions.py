"""What others on this machine may do with files of the fleet: nothing."""

import stat
from pathlib import Path


def open_to_others(folder: Path) -> list[str]:
    """Everything in the folder, itself among it, that somebody else than its owner has any right to."""
    found = []
    for path in (folder, *folder.rglob("*")):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue  # a living process removes files
        if not stat.S_ISLNK(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            found.append(f"{path} {stat.filemode(mode)}")
    return found

"""Numbered folders of which each living worker holds one, by a file lock."""

import fcntl
from pathlib import Path
from typing import BinaryIO

_MOST_HOMES = 1024


def take_first_free(folder: Path) -> tuple[Path, BinaryIO]:
    """Lock the first folder that no living worker holds; it is free when the file is closed."""
    for number in range(1, _MOST_HOMES + 1):
        home = folder / str(number)
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / "lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return home, lock
    raise OSError(f"{_MOST_HOMES} workers use it already")

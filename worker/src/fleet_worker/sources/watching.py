"""Watches a folder for changes, also while it is removed and made again."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from watchfiles import Change, awatch

logger = logging.getLogger(__name__)

# A change is reported when nothing else has changed for this long, or at last after the second.
_QUIET_MS = 100
_LONGEST_MS = 1000
_LOOK_MS = 500
_AGAIN_SECONDS = 0.5
# Besides code, what lists libraries; folders have no suffix.
_SUFFIXES = (".py", ".txt", ".toml", "")
# The files that Kubernetes mounts are links through this one, which it replaces.
_MOUNTED = "..data"


async def watch_code(folder: Path, on_change: Callable[[], None], *, apart_from: Path) -> None:
    """Call `on_change` after changes of code in the folder or below, but for one folder in it.

    Also when other files beside code come or go.
    """

    def is_wanted(change: Change, path: str) -> bool:
        file = Path(path)
        if file.is_relative_to(apart_from) or not file.is_relative_to(folder):
            return False
        if file == folder / _MOUNTED:
            return True
        if any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(folder).parts):
            return False
        return file.suffix in _SUFFIXES or (change is not Change.modified and _has_code(file.parent))

    await _watch(folder, on_change, is_wanted, recursive=True)


async def watch_file(file: Path, on_change: Callable[[], None]) -> None:
    """Call `on_change` after changes of the file."""
    names = (file.name, _MOUNTED)
    await _watch(file.parent, on_change, lambda _change, path: Path(path).name in names, recursive=False)


async def _watch(
    folder: Path, on_change: Callable[[], None], wanted: Callable[[Change, str], bool], *, recursive: bool
) -> None:
    while True:
        try:
            identity = _identity(folder)
            changes = awatch(
                folder,
                watch_filter=wanted,
                recursive=recursive,
                step=_QUIET_MS,
                debounce=_LONGEST_MS,
                # Returns now and then without changes, to find out whether the folder is another one.
                rust_timeout=_LOOK_MS,
                yield_on_timeout=True,
            )
            is_first = True
            async for found in changes:
                if found or is_first:
                    on_change()  # the first time: what has changed before it was watched
                is_first = False
                if _identity(folder) != identity:
                    break
            on_change()
        except FileNotFoundError:
            on_change()
        except OSError as error:
            logger.warning("changes in %s cannot be noticed (%s); SIGHUP reloads the flows", folder, error)
            return
        await asyncio.sleep(_AGAIN_SECONDS)


def _has_code(folder: Path) -> bool:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return any(entry.name.endswith(".py") for entry in entries)
    return False


def _identity(folder: Path) -> int:
    return folder.stat().st_ino

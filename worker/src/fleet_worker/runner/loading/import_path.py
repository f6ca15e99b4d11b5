"""What this process imports from: wheels, libraries, and the copy of a flows folder."""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..failures import shown_paths


def add_to_path(paths: Sequence[str]) -> None:
    """Let this process import from wheels, and let the programs that it starts use them.

    After the standard library, before the packages of the interpreter: a wheel may bring another version of a package
    that happens to be installed. Those that the worker itself needs are not accepted as wheels in the first place.
    """
    places = [
        number for number, entry in enumerate(sys.path) if Path(entry).name in ("site-packages", "dist-packages")
    ]
    start = places[0] if places else len(sys.path)
    sys.path[start:start] = paths
    importlib.invalidate_caches()
    _append("PYTHONPATH", paths)
    _append("PATH", [scripts for path in paths if os.path.isdir(scripts := os.path.join(path, "bin"))])


def _append(variable: str, paths: Sequence[str]) -> None:
    if paths:
        before = [value] if (value := os.environ.get(variable)) else []
        os.environ[variable] = os.pathsep.join([*before, *paths])


def use_copy(copy: str, original: Path) -> None:
    """Import nothing from the original folder, not even if it is the current directory; but name its files."""
    entries = [entry for entry in sys.path if Path(entry).absolute() != original]
    above = [number for number, entry in enumerate(entries) if Path(entry).absolute() == original.parent]
    if above:
        # Flows may import each other as parts of the folder that the worker was started in.
        entries.insert(above[0], str(Path(copy).parent))
    sys.path[:] = entries
    shown_paths.set(copy, str(original))

"""How long the command line takes to show its help, in times of an interpreter that does nothing."""

import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace

from ..figures import Figure
from ..session import Session
from ..sides import Side

_LIMIT = 4.0
_PAIRS = 15


def measure_start(session: Session) -> list[Figure]:
    return [replace(session.compare("pyoco-client --help", "× python", _times_of_python), limit=_LIMIT)]


def _times_of_python(side: Side) -> float:
    """The median of pairs: whatever else the machine does, it does to both of a pair."""
    help_command, nothing = [side.program("pyoco-client"), "--help"], [side.program("python"), "-c", "pass"]
    # The first time it is read from disk.
    _seconds(help_command)
    return statistics.median(_seconds(help_command) / _seconds(nothing) for _ in range(_PAIRS))


def _seconds(command: Sequence[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun

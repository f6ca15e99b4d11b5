"""The order of tests that run side by side: long ones begin first, so that none runs on alone at the end."""

import itertools
import os
from collections.abc import Sequence

import pytest


def long_first(items: Sequence[pytest.Item], processes: int | None = None) -> list[pytest.Item]:
    """Deal the files with the mark `long` round over the processes of pytest-xdist, and each begins with its own.

    `--dist worksteal` gives each process one contiguous part of the list, and moves only ends of parts afterwards.
    """
    processes = processes or int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.get_closest_marker("long") is not None]
    files = [list(tests) for _, tests in itertools.groupby(long, key=lambda item: item.path)]
    chosen = set(long)
    others = iter([item for item in items if item not in chosen])
    ordered: list[pytest.Item] = []
    for number in range(processes):
        part = (len(items) - len(ordered)) // (processes - number)
        first = [test for tests in files[number::processes] for test in tests]
        ordered += [*first, *itertools.islice(others, max(0, part - len(first)))]
    return ordered

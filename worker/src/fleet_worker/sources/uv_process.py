"""Uv as a child of the agent: `python -m fleet_worker.sources.uv_process <pid of the agent> pip install …`."""

import os
import sys

from uv import find_uv_bin

from ..boundary.parent_death import die_with


def main() -> None:
    die_with(int(sys.argv[1]))
    program = find_uv_bin()
    # The parent-death signal stays set.
    os.execv(program, [program, *sys.argv[2:]])  # noqa: S606 - a program of our own requirements


if __name__ == "__main__":
    main()

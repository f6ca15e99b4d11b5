"""Pip as a child of the agent: `python -m fleet_worker.wheels.pip_process <pid of the agent> install …`."""

import runpy
import sys

from ..boundary.parent_death import die_with


def main() -> None:
    die_with(int(sys.argv.pop(1)))
    runpy.run_module("pip", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""Another user of this machine, and an interpreter that this user can execute: that of the tests may be in a home."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = "nobody"


def python_of_nobody(readable: Path) -> tuple[str, dict[str, str]]:
    """The interpreter and the environment that it needs. Skips where there is none, or a file cannot be read."""
    if os.geteuid() != 0:
        pytest.skip("only root can run runners as another user")
    packages = os.pathsep.join(path for path in sys.path if path and not path.startswith(sys.base_prefix))
    env = {"PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}
    probe = f"import sys, fleet_worker.runner.main; open({str(readable)!r}); assert sys.version_info[:2] == "
    probe += str(sys.version_info[:2])
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            command = [python, "-c", probe]
            subprocess.run(command, user=NOBODY, group="nogroup", extra_groups=[], cwd="/", env=env, check=True)
            return python, env
    pytest.skip(f"{NOBODY} can execute no Python {sys.version_info[:2]}, or cannot read {sys.prefix} and {readable}")

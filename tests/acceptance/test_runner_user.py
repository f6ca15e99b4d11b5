"""Flows that a whole stack runs as another user reach none of its secrets; only root can start such a stack."""

import os
import pwd
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_testkit.other_user import NOBODY, python_of_nobody
from fleet_testkit.runs import submit, wait_ended
from fleet_testkit.stack import Stack

pytestmark = pytest.mark.embedded_only("the data dir of a stack and a user of this machine")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """The folders of pytest are closed to others."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o711)
        yield Path(folder)


class StackOf(Stack):
    """A stack whose parts another interpreter executes."""

    python = sys.executable

    def _execute(self, *command: str) -> "subprocess.CompletedProcess[str]":
        module, _, function = command[0].partition(":")
        code = f"from {module} import {function}; {function}()"
        whole = [self.python, "-c", code, *command[1:]]
        return subprocess.run(whole, env=self.env, capture_output=True, text=True, timeout=120, check=False)


def test_flows_of_a_stack_that_runs_them_as_another_user_reach_none_of_its_secrets(
    open_folder: Path, flows_dir: Path
) -> None:
    readable = flows_dir / "probes.py"
    python, env = python_of_nobody(readable)
    # The launcher finds the worker's program on the PATH.
    worker = open_folder / "bin" / "pyoco-worker"
    worker.parent.mkdir()
    worker.write_text(f"#!{python}\nfrom fleet_worker.cli import main\n\nmain()\n")
    worker.chmod(0o700)
    programs = os.pathsep.join((str(worker.parent), sysconfig.get_path("scripts"), os.environ["PATH"]))
    env |= {"PYOCO_RUNNER_USER": NOBODY, "TMPDIR": str(open_folder), "PATH": programs}
    stack = StackOf(open_folder / "data", "--slots", "1", "--flows-dir", str(flows_dir), env=env)
    stack.python = python
    with stack:
        folder = stack.data_dir
        secret = [*folder.rglob("*.nk"), *folder.rglob("*.secret"), *folder.glob("runs.db*"), *folder.rglob("*.blk")]
        assert {file.name for file in secret} >= {"operator.nk", "runs-api.nk", "gateway.secret", "runs.db"}
        run_id = submit(stack.client, "prying", files=[str(readable), *map(str, secret)])
        [run] = wait_ended(stack.client, [run_id])
        assert (run["status"], run["error"]) == ("COMPLETED", None)
        assert run["result"] == {"uid": pwd.getpwnam(NOBODY).pw_uid, "read": [str(readable)]}

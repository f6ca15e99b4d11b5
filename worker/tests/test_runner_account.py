"""What flows see and may read: nothing of the fleet's in their environment, and as another user not its files."""

import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet_contracts.status import RunStatus
from fleet_testkit.other_user import NOBODY, python_of_nobody

from .conftest import FLOWS, Desk, WorkerProcess

StartWorker = Callable[..., WorkerProcess]


async def test_flows_have_the_callers_environment_without_that_of_the_fleet(
    desk: Desk, start_worker: StartWorker
) -> None:
    start_worker(
        "w1",
        MY_SETTING="mine",
        PYOCO_AUTH_PEPPER="hush",
        PYOCO_RUNS_DATABASE_URL="postgresql://pyoco:hush@db/pyoco",
        PYOCO_SOMETHING_NEW="hush",
        PYOCO_NAMED="read by workflow files",
        PYOCO_WORKFLOW_ENV_ALLOW="PYOCO_NAMED",
        PYOCO_FLEET_PART="stack/worker-1",
        OTEL_EXPORTER_OTLP_HEADERS="authorization=hush",
        OTEL_EXPORTER_OTLP_TRACES_HEADERS="authorization=hush",
        OTEL_SDK_DISABLED="true",
    )
    run = await desk.wait_ended(await desk.submit("curious"))
    seen = run.result["environ"]
    assert {name for name in seen if name.startswith("PYOCO_")} == {"PYOCO_NAMED", "PYOCO_FLEET_PART"}
    assert "hush" not in str(seen)
    assert (seen["MY_SETTING"], seen["PATH"]) == ("mine", os.environ["PATH"])
    assert "nats://" not in str(run.result["argv"])


@pytest.fixture
def nobodys_python() -> dict[str, str]:
    python, env = python_of_nobody(FLOWS / "tiny.py")
    return {"python": python, **env}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """The folders of pytest are closed to others."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o711)
        yield Path(folder)


async def test_flows_of_another_user_cannot_read_what_is_the_workers(
    desk: Desk, start_worker: StartWorker, nobodys_python: dict[str, str], open_folder: Path
) -> None:
    seed = open_folder / "w1.nk"
    seed.write_text("hush")
    seed.chmod(0o600)
    # As in a stack, whose data dir is closed to others: the worker finds a place itself.
    place = {"PYOCO_WORKER_DIR": "", "TMPDIR": str(open_folder)}
    worker = start_worker("w1", PYOCO_RUNNER_USER=NOBODY, **place, **nobodys_python)
    run = await desk.wait_ended(await desk.submit("curious", file=str(seed), own_file="note.txt"))
    assert (run.status, run.error) == (RunStatus.COMPLETED, None)
    account = pwd.getpwnam(NOBODY)
    assert run.result["uids"] == [account.pw_uid] * 3
    assert run.result["gids"] == [account.pw_gid] * 3
    assert run.result["groups"] in ([], [account.pw_gid])
    assert run.result["environ"]["HOME"] == account.pw_dir
    assert run.result["denied"] == [str(seed), f"/proc/{worker.process.pid}/environ"]
    assert Path(run.result["folder"]).is_relative_to(open_folder)
    # It ends with its agent all the same.
    [runner] = worker.runners()
    worker.kill()
    runner.wait(timeout=60)


async def test_flows_of_the_same_user_cannot_read_the_environment_of_their_worker(
    desk: Desk, start_worker: StartWorker, nobodys_python: dict[str, str], open_folder: Path
) -> None:
    shutil.chown(open_folder, NOBODY)
    worker = start_worker("w1", user=NOBODY, PYOCO_WORKER_DIR=str(open_folder), **nobodys_python)
    run = await desk.wait_ended(await desk.submit("curious", file="/etc/passwd"))
    assert run.result["denied"] == [f"/proc/{worker.process.pid}/environ"]


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ("no-such-user", "PYOCO_RUNNER_USER='no-such-user' is not allowed: this machine has no such user"),
        (NOBODY, f"cannot be reached by the user {NOBODY} (PYOCO_RUNNER_USER); let that user"),
    ],
)
async def test_a_user_that_runners_cannot_be_is_refused_with_a_sentence(
    desk: Desk, start_worker: StartWorker, tmp_path: Path, user: str, said: str
) -> None:
    if os.geteuid() != 0 and user == NOBODY:
        said = "only a worker that runs as root can run its runners as somebody else"
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    worker = start_worker("w1", refuses_to_start=True, PYOCO_RUNNER_USER=user, PYOCO_WORKER_DIR=str(closed / "w1"))
    assert worker.process.wait(timeout=60) == 1
    assert said in worker.log

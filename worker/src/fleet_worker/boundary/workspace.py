"""Working folders of runs: one per run, empty at the start, removed at the end."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .runner_account import RunnerAccount

# Pyoco makes this one in every working folder.
_ARTIFACTS = "artifacts"


class Workspace:
    """Makes and removes run folders.

    Making and removing two folders costs a journalling file system more than a tiny run takes. So a
    folder that a run has left untouched is put aside and renamed for the next run. Paths are strings
    here: with Path objects, this would take a tenth of a tiny run.
    """

    def __init__(self, runs_dir: Path) -> None:
        self._home = os.getcwd()
        self._spare = str(spare_folder(runs_dir, os.getpid()))

    def enter(self, folder: str) -> None:
        try:
            os.rename(self._spare, folder)
        except OSError:
            # There is none, or there is a folder of that name already.
            os.makedirs(folder, exist_ok=True)
        os.chdir(folder)

    def leave(self, folder: str) -> None:
        os.chdir(self._home)
        # An error: the run has removed the folder, or there is a spare one already.
        with suppress(OSError):
            if os.listdir(folder) == [_ARTIFACTS] and not os.listdir(f"{folder}/{_ARTIFACTS}"):
                os.rename(folder, self._spare)
                return
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        shutil.rmtree(self._spare, ignore_errors=True)


def spare_folder(runs_dir: Path, runner_pid: int) -> Path:
    return runs_dir / f".spare-{runner_pid}"


class FolderUnreachable(Exception):
    """The runners' user cannot enter a folder of the worker; the message says what to do."""


@contextmanager
def worker_folder(wanted: Path | None, account: RunnerAccount | None) -> Iterator[Path]:
    """The worker's folder for its runners: the configured one, or a temporary one that is removed afterwards."""
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        _check_reach(wanted, account, setting="PYOCO_WORKER_DIR")
        yield wanted.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="pyoco-worker-", ignore_cleanup_errors=True) as folder:
        if account is not None:
            os.chmod(folder, 0o711)  # noqa: S103 - to be passed through, not to be looked into
            _check_reach(Path(folder).parent, account, setting="TMPDIR")
        yield Path(folder)


def _check_reach(folder: Path, account: RunnerAccount | None, *, setting: str) -> None:
    if account is not None and not account.can_reach(folder):
        raise FolderUnreachable(
            f"{setting}={folder} cannot be reached by the user {account.name} (PYOCO_RUNNER_USER); let that user "
            "enter it and the folders above, or name another folder"
        )


@contextmanager
def runs_folder(worker_folder: Path, account: RunnerAccount | None) -> Iterator[Path]:
    """The parent of the runs' working folders, removed afterwards if it is empty."""
    runs = worker_folder / "runs"
    runs.mkdir(exist_ok=True)
    if account is not None:
        runs.chmod(0o700)
        os.chown(runs, account.uid, account.gid, follow_symlinks=False)
    yield runs
    # Another worker may have runs in there.
    with suppress(OSError):
        runs.rmdir()

"""Installs the libraries of the flows folder for its runners with uv: once for each content, for all workers here."""

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection
from importlib.metadata import distributions
from pathlib import Path
from typing import BinaryIO

from packaging.utils import canonicalize_name

from fleet_contracts.log_events import LogEvent

from ..boundary.program import end_of, run_program
from ..boundary.runner_account import RunnerStart
from ..wheels.own_packages import first_clash, own_packages, own_roots, roots_of
from .requirements import LibrariesUnusable, Requirements

logger = logging.getLogger(__name__)

_LOCK_LOOK_SECONDS = 0.2
_UNUSED_SECONDS = 30 * 24 * 3600.0
_ERROR_CHARACTERS = 1500
# Followed by the name of the environment that is installed there.
_SCRATCH = ".install-"


class Libraries:
    """A folder of environments, each under the digest of what it was made from. It may be shared between workers.

    A worker holds a lock on those that its runners use.
    """

    def __init__(self, folder: Path, start: RunnerStart, *, timeout_seconds: float) -> None:
        self._folder = folder.absolute()
        self._start = start
        self._timeout_seconds = timeout_seconds
        self._held: dict[Path, BinaryIO] = {}

    async def get(self, requirements: Requirements) -> Path:
        """The environment, installed if it is not there. Raises LibrariesUnusable."""
        tree = self._folder / _key_of(requirements)
        if tree in self._held:
            return tree
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = tree.with_suffix(".lock").open("ab")
        except OSError as error:
            raise LibrariesUnusable(
                f"libraries cannot be kept in {self._folder} ({error.strerror}); make it writable or set "
                "PYOCO_FLOW_LIBRARIES_DIR to another folder"
            ) from error
        try:
            while not (_takes(lock, fcntl.LOCK_SH) and tree.is_dir()):
                if _takes(lock, fcntl.LOCK_EX) and not tree.is_dir():
                    await self._install(requirements, tree)
                else:
                    await asyncio.sleep(_LOCK_LOOK_SECONDS)
            os.utime(tree)
        except BaseException:
            lock.close()
            raise
        self._held[tree] = lock
        return tree

    def keep_only(self, trees: Collection[str]) -> None:
        """Let go of what no runner uses, and remove what no worker has used for long or has finished."""
        for tree in [tree for tree in self._held if str(tree) not in trees]:
            self._held.pop(tree).close()
        for note in self._folder.glob("*.lock"):
            tree = note.with_suffix("")
            if tree.is_dir() and time.time() - tree.stat().st_mtime > _UNUSED_SECONDS:
                _remove_unlocked(tree, note)
        for left in self._folder.glob(f"{_SCRATCH}*"):
            # Of a worker that was killed; one that installs holds the lock.
            _remove_unlocked(left, self._folder / f"{left.name.removeprefix(_SCRATCH).partition('-')[0]}.lock")

    async def _install(self, requirements: Requirements, tree: Path) -> None:
        what = f"{requirements.count} requirement{'' if requirements.count == 1 else 's'} of {requirements.file}"
        about = {"event": LogEvent.FLOW_LIBRARIES}
        logger.info("installing %s", what, extra=about)
        begun = time.monotonic()
        place, prefix = self._folder, f"{_SCRATCH}{tree.name}-"
        with tempfile.TemporaryDirectory(dir=place, prefix=prefix, ignore_cleanup_errors=True) as folder:
            scratch = Path(folder)
            await self._run_uv(requirements, scratch)
            made = scratch / "tree"
            made.mkdir(exist_ok=True)
            await asyncio.to_thread(_leave_the_workers_own, made, requirements.file)
            if self._start.account is not None:
                await asyncio.to_thread(_let_all_read, made)
            made.rename(tree)
        logger.info("installed %s in %.1f s", what, time.monotonic() - begun, extra=about)

    async def _run_uv(self, requirements: Requirements, scratch: Path) -> None:
        wanted, pins, output = scratch / "wanted", scratch / "pins", scratch / "output"
        wanted.write_text(requirements.text)
        pins.write_text("".join(f"{name}=={version}\n" for name, version in own_packages().items()))
        # As another user, runners must not have code executed as this one: no package is built here.
        apart = ["--no-build", "--link-mode", "copy"] if self._start.account is not None else []
        cache = {"UV_CACHE_DIR": str(self._folder / "cache")}
        try:
            code = await run_program(
                [
                    *(sys.executable, "-I", "-m", "fleet_worker.sources.uv_process", str(os.getpid())),
                    *("pip", "install", "--python", sys.executable, "--target", str(scratch / "tree"), *apart),
                    *("--requirements", "-", "--constraints", str(pins), "--no-progress", "--color", "never"),
                    # Runners may not be allowed to write there, and would compile at each start.
                    "--compile-bytecode",
                ],
                # Paths in the file are relative to it, and uv's settings may lie beside it.
                cwd=requirements.file.parent,
                env={**cache, **self._start.environment(os.environ), "PYTHONPATH": ""},
                stdin=wanted,
                output=output,
                timeout_seconds=self._timeout_seconds,
            )
        except TimeoutError:
            raise LibrariesUnusable(
                f"{requirements.file} was not installed within {self._timeout_seconds:g} s "
                "(PYOCO_FLOW_INSTALL_TIMEOUT_SEC)"
            ) from None
        if code != 0:
            said = end_of(output, _ERROR_CHARACTERS) or f"uv ended with exit code {code}"
            raise LibrariesUnusable(f"{requirements.file} cannot be installed: {said}")


def _key_of(requirements: Requirements) -> str:
    """Another Python, platform or worker needs another environment."""
    own = [f"{name}=={version}" for name, version in sorted(own_packages().items())]
    parts = [sys.implementation.cache_tag or "", sysconfig.get_platform(), *own, requirements.digest]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _takes(lock: BinaryIO, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_unlocked(folder: Path, note: Path) -> None:
    with contextlib.suppress(OSError), note.open("ab") as lock:
        if _takes(lock, fcntl.LOCK_EX):
            shutil.rmtree(folder, ignore_errors=True)


def _leave_the_workers_own(tree: Path, file: Path) -> None:
    """Remove the packages that the worker has itself, in the same version; refuse others that would hide these."""
    kept: list[str] = []
    for distribution in distributions(path=[str(tree)]):
        files = [str(path) for path in distribution.files or []]
        if canonicalize_name(distribution.name) not in own_packages():
            kept += files
            continue
        for name in files:
            if (place := tree / name).resolve().is_relative_to(tree.resolve()):
                place.unlink(missing_ok=True)
    if (clash := first_clash(roots_of(kept), own_roots())) is not None:
        raise LibrariesUnusable(
            f"{file} cannot be used: it brings the module {clash.replace('/', '.')}, which would take the place of "
            "one that Python or the worker itself needs"
        )


def _let_all_read(tree: Path) -> None:
    for place in (tree, *tree.rglob("*")):
        if not place.is_symlink():
            place.chmod(place.stat().st_mode | (0o055 if place.is_dir() or os.access(place, os.X_OK) else 0o044))

"""The folder of a worker's wheels: a tree for each, and a note that lists those in force."""

import csv
import hashlib
import logging
import os
import shutil
import sys
import sysconfig
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ValidationError

from fleet_contracts.wheel import InstalledWheel

from ..boundary.locked_folder import take_first_free
from ..boundary.wheel_set import NO_WHEELS, WheelSet

logger = logging.getLogger(__name__)


class WheelFolderUnusable(Exception):
    """Wheels cannot be kept where they should; the message says what to fix."""


class _Note(BaseModel):
    """The wheels in force. The tree of each was complete when the note was written."""

    # Trees of another interpreter are not used.
    interpreter: str
    wheels: list[InstalledWheel]


class WheelHome:
    """A wheel folder that one living worker holds. A restarted worker uses the wheels that it finds there."""

    def __init__(self, folder: Path, interpreter: str) -> None:
        self._folder = folder
        self._interpreter = interpreter
        self._trees = folder / "trees"
        # Unfinished work; removed at the next start.
        self._scratch = folder / "scratch"
        self._note = folder / "wheels.json"
        self._complete: set[Path] = set()
        # The wheels in force that an earlier instance has left.
        self.left = NO_WHEELS

    @classmethod
    @contextmanager
    def taken(cls, folder: Path, interpreter: str | None = None) -> Iterator[Self]:
        """Lock the first home below the folder that no living worker holds."""
        try:
            home, lock = take_first_free(folder.absolute())
        except OSError as error:
            raise WheelFolderUnusable(
                f"wheels cannot be kept in {folder} ({error.strerror or error}); "
                "make it writable or set PYOCO_WHEEL_SYNC_DIR to another folder"
            ) from error
        with lock:
            # Installed scripts contain the path of their interpreter.
            this = f"{sys.implementation.cache_tag} {sysconfig.get_platform()} {sys.prefix}"
            taken = cls(home, interpreter or this)
            taken._look_around()
            yield taken

    def path_of(self, wheel: InstalledWheel) -> Path:
        """The path of a wheel's tree. It depends on the content, so the tree at a path never changes."""
        digest = hashlib.sha256(f"{wheel.name}\n{wheel.nuid}\n{wheel.sha256_hex}".encode()).hexdigest()
        return self._trees / f"{wheel.package}-{digest[:16]}"

    def has(self, wheel: InstalledWheel) -> bool:
        return self.path_of(wheel) in self._complete

    @contextmanager
    def scratch_folder(self) -> Iterator[Path]:
        """A new folder for unfinished work, removed afterwards."""
        scratch = self._scratch / uuid.uuid4().hex[:12]
        scratch.mkdir(parents=True)
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def add(self, wheel: InstalledWheel, tree: Path) -> None:
        """Move a finished tree to its place, by a single rename."""
        path = self.path_of(wheel)
        if path.exists():
            shutil.rmtree(path)
        self._trees.mkdir(exist_ok=True)
        tree.rename(path)
        self._complete.add(path)

    def set_of(self, wheels: Sequence[InstalledWheel]) -> WheelSet:
        assert all(self.has(wheel) for wheel in wheels)
        return WheelSet(wheels, [str(self.path_of(wheel)) for wheel in wheels])

    def note(self, wheels: Sequence[InstalledWheel]) -> None:
        """Record the wheels that are in force from now on, also for a restarted worker."""
        text = _Note(interpreter=self._interpreter, wheels=list(wheels)).model_dump_json()
        draft = self._note.with_suffix(".draft")
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._note)

    def keep_only(self, paths: Collection[str]) -> None:
        for tree in self._trees.glob("*"):
            if str(tree) not in paths:
                self._complete.discard(tree)
                shutil.rmtree(tree, ignore_errors=True)

    def _look_around(self) -> None:
        """Find the wheels that an earlier instance has left: only complete trees are used again."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        try:
            note = _Note.model_validate_json(self._note.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError):
            logger.warning("the note of the wheels in %s cannot be read; they are fetched again", self._folder)
            return
        if note.interpreter != self._interpreter:
            return
        self._complete = {path for wheel in note.wheels if _is_whole(path := self.path_of(wheel))}
        if all(self.has(wheel) for wheel in note.wheels):
            self.left = self.set_of(note.wheels)
        else:
            logger.warning("wheels in %s are damaged and are fetched again", self._folder)


def _is_whole(tree: Path) -> bool:
    """Whether every file of pip's RECORD is there in its full size; enough to see the damage of a crash."""
    try:
        records = list(tree.glob("*.dist-info/RECORD"))
        if len(records) != 1:
            return False
        with records[0].open(newline="") as lines:
            rows = [row for row in csv.reader(lines) if len(row) == 3]
        # Without scripts, which are not where RECORD says, and files that have no size there.
        sizes = {tree / name: size for name, _, size in rows if size and not name.startswith(("..", "/"))}
        return all(file.stat().st_size == int(size) for file, size in sizes.items())
    except (OSError, ValueError, csv.Error):
        return False

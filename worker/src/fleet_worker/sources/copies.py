"""Copies of the flows folder's code: runners load a copy, so an edit cannot break the version in force.

Only code is copied. Everything else in the folder, such as data files, is linked: it is always the present one.
"""

import hashlib
import itertools
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..boundary.locked_folder import take_first_free
from ..boundary.runner_account import RunnerAccount

_MOST_ENTRIES = 5_000
_MOST_BYTES = 64 * 1024 * 1024
_CODE = ".py"
# Linked as a whole: nobody has flows in there.
_OTHER_PEOPLES_CODE = ("node_modules", "site-packages")
_CACHE = "__pycache__"


class TooLarge(Exception):
    """The folder has too much in it for a copy; the message says how much is too much."""


@dataclass(frozen=True, slots=True)
class Copy:
    folder: Path
    # Of the paths and contents of all code, and of the names of what is linked.
    digest: str


class FolderCopies:
    def __init__(self, original: Path, home: Path) -> None:
        self._original = original
        self._home = home
        self._numbers = itertools.count(1)

    @classmethod
    @contextmanager
    def kept_in(cls, folder: Path, original: Path, account: RunnerAccount | None) -> Iterator[Self]:
        """Keep copies in a part of the folder that no other living worker uses; they are removed afterwards."""
        home, lock = take_first_free(folder)
        if account is not None:
            for place in (folder, home):
                os.chown(place, -1, account.gid)
                place.chmod(0o750)
        copies = cls(original, home)
        with lock:
            copies.keep_only(())
            try:
                yield copies
            finally:
                copies.keep_only(())

    def make(self) -> Copy:
        """Copy the code as it is now. Raises OSError, and TooLarge."""
        target = self._home / str(next(self._numbers)) / self._original.name
        # Nor the copies of other workers.
        code = list(_code_in(self._original, apart_from=self._home.parent))
        try:
            return Copy(target, self._fill(target, code))
        except BaseException:
            shutil.rmtree(target.parent, ignore_errors=True)
            raise

    def _fill(self, target: Path, code: Collection[Path]) -> str:
        """Copy the code and link everything else; returns the digest."""
        digest = hashlib.sha256()
        folders = {self._original}
        for file in code:
            text = file.read_bytes()
            place = target / file.relative_to(self._original)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text)
            _keep_times(file, place)
            digest.update(f"{place.relative_to(target)}\0{len(text)}\0".encode(errors="surrogateescape") + text)
            folders.update(above for above in file.parents if above.is_relative_to(self._original))
        target.mkdir(parents=True, exist_ok=True)
        for folder in sorted(folders):
            below = folder.relative_to(self._original)
            for name in _link_others(folder, target / below, {*code, *folders}):
                digest.update(f"{below / name}\0".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def discard(self, copy: Copy) -> None:
        shutil.rmtree(copy.folder.parent, ignore_errors=True)

    def keep_only(self, folders: Collection[str]) -> None:
        kept = {Path(folder).parent for folder in folders}
        for place in self._home.iterdir():
            if place.is_dir() and place not in kept:
                shutil.rmtree(place, ignore_errors=True)


def _code_in(folder: Path, apart_from: Path) -> Iterator[Path]:
    entries = size = 0
    for place, folders, files in os.walk(folder, onerror=_raise):
        entries += len(folders) + len(files)
        own = (name for name in folders if Path(place, name) != apart_from and not _is_other_peoples(place, name))
        folders[:] = sorted(own)
        for name in sorted(files):
            if not name.endswith(_CODE):
                continue
            try:
                size += os.path.getsize(file := Path(place, name))
            except FileNotFoundError:
                continue  # an editor's temporary file
            yield file
        if entries > _MOST_ENTRIES or size > _MOST_BYTES:
            raise TooLarge(f"it has more than {_MOST_ENTRIES} entries, or {_MOST_BYTES // 2**20} MiB of code")


def _raise(error: OSError) -> None:
    raise error


def _is_other_peoples(place: str, name: str) -> bool:
    if name.startswith(".") or name == _CACHE or name in _OTHER_PEOPLES_CODE:
        return True
    return os.path.exists(os.path.join(place, name, "pyvenv.cfg"))


def _link_others(folder: Path, copied: Path, apart_from: Collection[Path]) -> list[str]:
    """The names of what was linked, without hidden files: editors have some for a moment."""
    names = []
    for entry in sorted(folder.iterdir()):
        if entry not in apart_from and entry.name != _CACHE:
            (copied / entry.name).symlink_to(entry)
            names += [entry.name] if not entry.name.startswith(".") else []
    return names


def _keep_times(file: Path, copied: Path) -> None:
    known = file.stat()
    os.utime(copied, ns=(known.st_atime_ns, known.st_mtime_ns))

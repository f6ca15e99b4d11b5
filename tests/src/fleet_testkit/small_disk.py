"""A small disk of a test's own, which the test may fill to its last byte."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CannotMount(Exception):
    """The tests cannot mount a disk on this machine; the message has the reason."""


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    @property
    def free_bytes(self) -> int:
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Fill the disk until only `leave_bytes` are free."""
        descriptor = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            while (left := self.free_bytes - leave_bytes) > 0:
                os.write(descriptor, bytes(min(left, 1024 * 1024)))
        except OSError:
            if leave_bytes:
                raise
        finally:
            os.close(descriptor)

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(path: Path, *, mib: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs; CannotMount where that is not allowed."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotMount(f"there is no mount command: {error}") from error
    if mounted.returncode:
        raise CannotMount(mounted.stderr.strip() or f"mount ended with {mounted.returncode}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)

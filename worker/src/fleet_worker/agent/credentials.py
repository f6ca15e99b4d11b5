"""Gives each of several identically started workers its own worker id and NATS user, by file locks."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NoCredentials(Exception):
    """No user is left for this worker; the message says what to do."""


@contextmanager
def taken_from(folder: Path) -> Iterator[Path]:
    """Lock the first free <worker id>.nk file. The kernel releases the lock however this process ends."""
    files = sorted(folder.glob("*.nk"), key=lambda file: (len(file.name), file.name))
    for file in files:
        try:
            # Reading is enough: the folder may be mounted read-only.
            handle = file.open("rb")
        except OSError as error:
            raise NoCredentials(
                f"PYOCO_WORKER_CREDENTIALS_DIR: {file} cannot be read ({error.strerror}); give it to this user"
            ) from error
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield file
            return
    if not files:
        raise NoCredentials(f"PYOCO_WORKER_CREDENTIALS_DIR: there is no <worker id>.nk in {folder}; make some")
    raise NoCredentials(f"PYOCO_WORKER_CREDENTIALS_DIR: all {len(files)} users in {folder} are taken; make more")

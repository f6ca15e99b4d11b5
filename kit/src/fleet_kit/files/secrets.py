"""Files with secrets: refused if other users can access them, written with mode 600 from the start."""

import os
import stat
import tempfile
from pathlib import Path

from pydantic import SecretStr


class SecretFileError(ValueError):
    """A file with a secret cannot be used."""


def read_secret(path: Path, *, setting: str) -> str:
    """The stripped text of the file. SecretFileError, which names the setting, if it cannot be used."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & stat.S_IRWXO:
                raise SecretFileError(f"{setting}: everybody on this machine may use {path}; run chmod 600 on it")
            text = file.read().strip()
    except OSError as error:
        raise SecretFileError(f"{setting}: {path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise SecretFileError(f"{setting}: {path} is not a text file") from error
    if not text:
        raise SecretFileError(f"{setting}: {path} is empty")
    return text


def secret_of(given: SecretStr | None, file: Path | None, *, setting: str) -> SecretStr | None:
    """The secret of a setting, or of the file that its setting with _FILE names; ValueError if both are set."""
    if file is None:
        return given
    if given is not None:
        raise ValueError(f"{setting} and {setting}_FILE are both set; unset one of them")
    return SecretStr(read_secret(file, setting=f"{setting}_FILE"))


def write_secret(path: Path, text: str) -> None:
    """Write the file atomically with mode 600; missing folders are made with mode 700."""
    for folder in reversed(path.parents):
        folder.mkdir(mode=0o700, exist_ok=True)
    # mkstemp makes it with mode 600.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise

"""The peer's own environment: made once under the data dir, used again by every later run."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import BenchFailed
from .progress import say

PEER = "pyoco-server==0.5.1"
# Pillow draws the chart; the fleet itself has no use for it.
_PACKAGES = (PEER, "pillow")
# On 3.11 the peer's worker hangs.
_OLDEST_FOR_WORKER = (3, 12)
_WANTED = ("3.13", "3.12")


@dataclass(frozen=True)
class PeerEnv:
    folder: Path
    has_worker: bool

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def script(self, name: str) -> str:
        return str(self.folder / "bin" / name)


def prepare_peer(folder: Path) -> PeerEnv:
    """The environment in `folder`, made if it is not there or was made of something else."""
    stamp = folder / "bench-stamp"
    wanted = "\n".join(_PACKAGES)
    if not stamp.exists() or stamp.read_text() != wanted:
        say(f"first use: making the environment of the peer ({PEER}) in {folder}")
        _make_venv(folder)
        _uv("pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *_PACKAGES)
        stamp.write_text(wanted)
    version = _version(folder / "bin" / "python")
    has_worker = version >= _OLDEST_FOR_WORKER
    if not has_worker:
        say(
            "the peer's worker is left out: it hangs on Python older than 3.12 and no other was found; "
            f"install one and remove {folder} to have it measured"
        )
    return PeerEnv(folder, has_worker)


def _make_venv(folder: Path) -> None:
    for python in _pythons():
        if _try_uv("venv", "--quiet", "--clear", "--no-python-downloads", "--python", python, str(folder)) is None:
            return
    say(f"no Python {' or '.join(_WANTED)} is installed; trying to download one")
    if _try_uv("venv", "--quiet", "--clear", "--python", _WANTED[0], str(folder)) is not None:
        _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(folder))


def _pythons() -> Iterator[str]:
    """Where an interpreter of a wanted version may be; not all that is named there runs."""
    versions = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for wanted in _WANTED:
        if sys.version_info[:2] == tuple(map(int, wanted.split("."))):
            yield sys.executable
        if on_path := shutil.which(f"python{wanted}"):
            yield on_path
        yield from (str(folder / "bin" / "python") for folder in sorted(versions.glob(f"{wanted}.*"), reverse=True))


def _version(python: Path) -> tuple[int, int]:
    code = "import sys; print(*sys.version_info[:2])"
    shown = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout
    major, minor = map(int, shown.split())
    return major, minor


def _uv(*arguments: str) -> None:
    if (error := _try_uv(*arguments)) is not None:
        raise BenchFailed(f"the environment of the peer could not be made: {error}")


def _try_uv(*arguments: str) -> str | None:
    """What uv reports as wrong; None when nothing is."""
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    done = subprocess.run([str(uv), *arguments], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr.strip() or f"uv exited with {done.returncode}")

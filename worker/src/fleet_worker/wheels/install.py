"""Checks a wheel, and installs it into a folder of its own with pip."""

import os
import re
import sys
import zipfile
from email.parser import BytesParser
from pathlib import Path

from ..boundary.program import end_of, run_program
from .choice import Interpreter
from .own_packages import first_clash, own_roots, roots_of

_METADATA = re.compile(r"[^/]*\.dist-info/METADATA")
_MAX_METADATA_BYTES = 4 * 1024 * 1024
_ERROR_CHARACTERS = 800


class InstallFailed(Exception):
    """A wheel could not be installed; the message says why."""


def why_unusable(file: Path, interpreter: Interpreter) -> str | None:
    """Why a wheel cannot be used, found by opening it; None if it can. InstallFailed if it is not a wheel."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            metadata = next((name for name in names if _METADATA.fullmatch(name)), None)
            if metadata is None:
                raise InstallFailed(f"{file.name} has no METADATA")
            with archive.open(metadata) as text:
                requires = BytesParser().parsebytes(text.read(_MAX_METADATA_BYTES)).get("Requires-Python")
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError) as error:
        raise InstallFailed(f"{file.name} cannot be opened: {error}") from error
    if not interpreter.accepts(requires):
        return f"it requires Python {requires}, and this is {interpreter.version}"
    if (clash := first_clash(roots_of(_inside(names)), own_roots())) is not None:
        module = clash.replace("/", ".")
        return (
            f"it brings the module {module}, which would take the place of one that Python or the worker itself needs"
        )
    return None


async def install(file: Path, *, into: Path, scratch: Path, timeout_seconds: float) -> None:
    """Run pip offline; it writes only to the two folders. Raises InstallFailed with the end of pip's output."""
    output = scratch / f"{into.name}.log"
    try:
        code = await run_program(
            [
                *(sys.executable, "-I", "-m", "fleet_worker.wheels.pip_process", str(os.getpid())),
                *("--isolated", "--disable-pip-version-check", "--no-input", "--no-color", "install"),
                *("--no-deps", "--no-index", "--only-binary", ":all:", "--force-reinstall", "--no-cache-dir"),
                *("--no-warn-script-location", "--root-user-action", "ignore"),
                *("--target", str(into), str(file)),
            ],
            cwd=scratch,
            env={
                "PATH": os.defpath,
                "LANG": "C.UTF-8",
                "HOME": str(scratch),
                "TMPDIR": str(scratch),
                "PIP_CONFIG_FILE": os.devnull,
            },
            output=output,
            timeout_seconds=timeout_seconds,
        )
    except TimeoutError:
        raise InstallFailed(
            f"{file.name} was not installed within {timeout_seconds:g} s (PYOCO_WHEEL_INSTALL_TIMEOUT_SEC)"
        ) from None
    if code != 0:
        said = end_of(output, _ERROR_CHARACTERS) or "pip said nothing"
        raise InstallFailed(f"{file.name} cannot be installed: {said}")


def _inside(names: list[str]) -> list[str]:
    """The files as they will be installed: what is in `x.data/purelib` goes to the top."""
    inside = []
    for name in names:
        top, _, rest = name.partition("/")
        if top.endswith(".data"):
            kind, _, rest = rest.partition("/")
            inside += [rest] if kind in ("purelib", "platlib") else []
        elif not top.endswith(".dist-info"):
            inside.append(name)
    return inside

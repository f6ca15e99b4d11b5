"""Finds the libraries that a flows folder asks for: in its requirements.txt, else in its pyproject.toml."""

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

_INCLUDED = re.compile(r"\s*(?:-r|-c|--requirements?|--constraints?)[\s=]+(\S+)")


class LibrariesUnusable(Exception):
    """The libraries of the flows folder cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Requirements:
    file: Path
    # In the form of a requirements.txt, without what the worker itself has in a fitting version.
    text: str
    count: int
    # Of all that is asked for, included files too.
    digest: str

    @classmethod
    def of(cls, folder: Path, own_packages: Mapping[str, str]) -> Self | None:
        """None if the folder asks for no libraries besides those that the worker has."""
        try:
            if (file := folder / "requirements.txt").is_file():
                lines = file.read_text().splitlines()
            elif (file := folder / "pyproject.toml").is_file():
                lines = _dependencies(file)
            else:
                return None
        except (OSError, ValueError) as error:
            raise LibrariesUnusable(f"{file} cannot be read: {error}") from error
        wanted = [line for line in lines if not _is_met(line, own_packages)]
        included = _included(folder, wanted, set())
        count = sum(_is_requirement(line) for text in (wanted, *included) for line in text)
        text = "\n".join(wanted) + "\n"
        everything = "\0".join([text, *("\n".join(lines) for lines in included)])
        digest = hashlib.sha256(everything.encode(errors="replace")).hexdigest()
        return cls(file, text, count, digest) if count else None


def _dependencies(file: Path) -> list[str]:
    found = tomllib.loads(file.read_text()).get("project", {}).get("dependencies", [])
    if not isinstance(found, list) or not all(isinstance(line, str) for line in found):
        raise ValueError("project.dependencies is not a list of strings")
    return found


def _is_met(line: str, own_packages: Mapping[str, str]) -> bool:
    try:
        wanted = Requirement(line.partition(" #")[0])
    except InvalidRequirement:
        return False
    version = own_packages.get(canonicalize_name(wanted.name))
    return version is not None and wanted.url is None and wanted.specifier.contains(version, prereleases=True)


def _is_requirement(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith(("#", "-"))


def _included(folder: Path, lines: list[str], seen: set[Path]) -> list[list[str]]:
    """The lines of each file that is included."""
    found = []
    for line in lines:
        if (match := _INCLUDED.match(line)) is None or (file := folder / match[1]) in seen or not file.is_file():
            continue
        seen.add(file)
        text = file.read_text(errors="replace").splitlines()
        found += [text, *_included(file.parent, text, seen)]
    return found

"""Chooses the wheels that a worker should have from the registry: rules without any I/O."""

import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import BuildTag, InvalidWheelFilename, NormalizedName, parse_wheel_filename
from packaging.version import Version

from fleet_contracts.wheel import InstalledWheel, SkippedWheel, is_meant_for

# The allowed names: a name becomes the name of a file, and is shown to people.
_FILE_NAME = re.compile(r"[A-Za-z0-9._+!-]{1,255}\.whl")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A wheel as the registry knows it."""

    name: str
    nuid: str
    sha256_hex: str | None
    tags: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that runs the flows."""

    # Every wheel tag that it supports with its rank; smaller is better.
    ranks: Mapping[str, int]
    version: str
    # The versions of the worker's own packages.
    own_packages: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls, own_packages: Mapping[str, str]) -> "Interpreter":
        ranks: dict[str, int] = {}
        for rank, tag in enumerate(sys_tags()):
            ranks.setdefault(str(tag), rank)
        return cls(ranks, platform.python_version(), own_packages)

    @property
    def kind(self) -> str:
        """The best tag: a wheel that is installed for one kind may not work on another."""
        return min(self.ranks, key=self.ranks.__getitem__)

    def accepts(self, requires_python: str | None) -> bool:
        if not requires_python:
            return True
        try:
            return SpecifierSet(requires_python).contains(self.version, prereleases=True)
        except InvalidSpecifier:
            return True  # pip reads it that way, too


@dataclass(frozen=True, slots=True)
class Choice:
    selected: list[InstalledWheel]
    # Wheels for this worker that cannot be used; only those that are preferred to the selected one.
    skipped: list[SkippedWheel]


@dataclass(frozen=True, slots=True)
class _Release:
    candidate: Candidate
    package: NormalizedName
    version: Version
    build: BuildTag
    # The rank of its best tag; None: no tag fits.
    rank: int | None


def choose(
    candidates: Iterable[Candidate],
    *,
    worker_tags: Sequence[str],
    interpreter: Interpreter,
    refused: Mapping[str, str],
) -> Choice:
    """Choose, of each package, the newest wheel that is meant for the worker and works there.

    `refused` has the reasons, by nuid, against wheels that were found unusable when they were opened.
    """
    skipped: list[SkippedWheel] = []
    releases: dict[NormalizedName, list[_Release]] = {}
    for candidate in candidates:
        if not is_meant_for(worker_tags, candidate.tags):
            continue
        try:
            release = _read(candidate, interpreter)
        except InvalidWheelFilename as error:
            skipped.append(SkippedWheel(name=candidate.name[:300], reason=f"its name cannot be read: {error}"[:300]))
            continue
        releases.setdefault(release.package, []).append(release)
    selected: list[InstalledWheel] = []
    for package in sorted(releases):
        for release in sorted(releases[package], key=_preference, reverse=True):
            reason = _why_not(release, interpreter, refused)
            if reason is None:
                selected.append(_selected(release))
                break
            skipped.append(SkippedWheel(name=release.candidate.name, reason=reason))
    return Choice(selected, sorted(skipped, key=lambda wheel: wheel.name))


def _read(candidate: Candidate, interpreter: Interpreter) -> _Release:
    if not _FILE_NAME.fullmatch(candidate.name):
        raise InvalidWheelFilename("only letters, digits and . _ + ! - are allowed")
    package, version, build, tags = parse_wheel_filename(candidate.name)
    ranks = [rank for tag in tags if (rank := interpreter.ranks.get(str(tag))) is not None]
    return _Release(candidate, package, version, build, min(ranks, default=None))


def _preference(release: _Release) -> tuple[Version, bool, int, BuildTag, str]:
    fits = release.rank is not None
    return release.version, fits, -(release.rank or 0), release.build, release.candidate.nuid


def _why_not(release: _Release, interpreter: Interpreter, refused: Mapping[str, str]) -> str | None:
    candidate = release.candidate
    if (own := interpreter.own_packages.get(release.package)) is not None:
        return f"the worker itself is made with {release.package} {own}, which stays in use"
    if release.rank is None:
        return f"no tag of it fits this Python, {interpreter.kind}"
    if candidate.sha256_hex is None:
        return "the registry has no SHA-256 of it"
    return refused.get(candidate.nuid)


def _selected(release: _Release) -> InstalledWheel:
    return InstalledWheel(package=release.package, version=str(release.version), **asdict(release.candidate))

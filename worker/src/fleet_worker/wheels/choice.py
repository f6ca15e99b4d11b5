"""Chooses the wheels that a worker should have from the registry: rules without any I/O."""

import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import BuildTag, InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from fleet_contracts.wheel import WHEEL_TAGS_HEADER, InstalledWheel, SkippedWheel, is_meant_for, split_tags
from fleet_kit.nats.stores.objects import StoredObject

# The allowed names: a name becomes the name of a file, and is shown to people.
_FILE_NAME = re.compile(r"[A-Za-z0-9._+!-]{1,255}\.whl")


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
    wheel: InstalledWheel
    version: Version
    build: BuildTag
    # The rank of its best tag; None: no tag fits.
    rank: int | None


def choose(
    registered: Iterable[StoredObject],
    *,
    worker_tags: Sequence[str],
    interpreter: Interpreter,
    refused: Mapping[str, str],
) -> Choice:
    """Choose, of each package, the newest wheel that is meant for the worker and works there.

    `refused` has the reasons, by nuid, against wheels that were found unusable when they were opened.
    """
    skipped: list[SkippedWheel] = []
    releases: dict[str, list[_Release]] = {}
    for stored in registered:
        tags = split_tags(stored.headers.get(WHEEL_TAGS_HEADER))
        if not is_meant_for(worker_tags, tags):
            continue
        try:
            release = _read(stored, tags, interpreter)
        except InvalidWheelFilename as error:
            skipped.append(SkippedWheel(name=stored.name[:300], reason=f"its name cannot be read: {error}"[:300]))
            continue
        releases.setdefault(release.wheel.package, []).append(release)
    selected: list[InstalledWheel] = []
    for package in sorted(releases):
        for release in sorted(releases[package], key=_preference, reverse=True):
            reason = _refusal_of(release, interpreter, refused)
            if reason is None:
                selected.append(release.wheel)
                break
            skipped.append(SkippedWheel(name=release.wheel.name, reason=reason))
    return Choice(selected, sorted(skipped, key=lambda wheel: wheel.name))


def _read(stored: StoredObject, meant_for: list[str], interpreter: Interpreter) -> _Release:
    if not _FILE_NAME.fullmatch(stored.name):
        raise InvalidWheelFilename("only letters, digits and . _ + ! - are allowed")
    package, version, build, tags = parse_wheel_filename(stored.name)
    ranks = [rank for tag in tags if (rank := interpreter.ranks.get(str(tag))) is not None]
    wheel = InstalledWheel(
        name=stored.name,
        package=package,
        version=str(version),
        nuid=stored.nuid,
        sha256_hex=stored.sha256_hex,
        tags=meant_for,
    )
    return _Release(wheel, version, build, min(ranks, default=None))


def _preference(release: _Release) -> tuple[Version, bool, int, BuildTag, str]:
    fits = release.rank is not None
    return release.version, fits, -(release.rank or 0), release.build, release.wheel.nuid


def _refusal_of(release: _Release, interpreter: Interpreter, refused: Mapping[str, str]) -> str | None:
    wheel = release.wheel
    if (own := interpreter.own_packages.get(wheel.package)) is not None:
        return f"the worker itself is made with {wheel.package} {own}, which stays in use"
    if release.rank is None:
        return f"no tag of it fits this Python, {interpreter.kind}"
    if wheel.sha256_hex is None:
        return "the registry has no SHA-256 of it"
    return refused.get(wheel.nuid)

"""Parses file names of wheels (package, version, tags), and checks that a version is newer."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from .errors import InvalidUpload, VersionNotNewer, shown

# Valid as one file name everywhere: no folders, no control characters, nothing special in headers or shells.
FILE_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl$"
LONGEST_FILE_NAME = 255
# A compressed tag such as py2.py3-none-any stands for several; a long name could stand for a hundred thousand.
_MOST_TAGS = 1000


@dataclass(frozen=True, slots=True)
class WheelName:
    file_name: str
    # Normalized as in package indexes: lower case, words joined by "-".
    package: str
    version: Version
    tags: frozenset[Tag]


def is_file_name(text: str) -> bool:
    return len(text) <= LONGEST_FILE_NAME and re.fullmatch(FILE_NAME_PATTERN, text) is not None


def parse_name(text: str) -> WheelName:
    """Parse the file name of a wheel; InvalidUpload if it is not one."""
    if not is_file_name(text):
        raise InvalidUpload(
            "wheel",
            f"{shown(text)!r} is no file name of a wheel: it is <package>-<version>-<python>-<abi>-<platform>.whl, "
            f"with at most {LONGEST_FILE_NAME} letters, digits and . _ + ! -",
        )
    stands_for = 1
    for part in text.removesuffix(".whl").split("-")[-3:]:
        stands_for *= part.count(".") + 1
    if stands_for > _MOST_TAGS:
        raise InvalidUpload("wheel", f"{shown(text)!r} names more than {_MOST_TAGS} combinations of tags")
    try:
        package, version, _, tags = parse_wheel_filename(text)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise InvalidUpload("wheel", f"{shown(str(error))}; build the wheel with a build tool") from error
    return WheelName(text, package, version, tags)


def require_newer(wheel: WheelName, registered: Iterable[str]) -> None:
    """VersionNotNewer unless the wheel is newer than all registered ones of its package (REQ-0025)."""
    newest: tuple[Version, str] | None = None
    for file_name in registered:
        known = _package_and_version(file_name)
        if known is not None and known[0] == wheel.package and (newest is None or known[1] > newest[0]):
            newest = (known[1], file_name)
    if newest is not None and wheel.version <= newest[0]:
        raise VersionNotNewer(
            f"{wheel.package} {wheel.version} is not newer than the registered {newest[0]} ({newest[1]}); "
            "raise the version and try again",
            package=wheel.package,
            version=str(wheel.version),
            registered_version=str(newest[0]),
        )


def _package_and_version(file_name: str) -> tuple[str, Version] | None:
    """None for an object that is not named like a wheel; other programs may store such objects."""
    parts = file_name.removesuffix(".whl").split("-")
    if not file_name.endswith(".whl") or len(parts) not in (5, 6):
        return None
    try:
        return canonicalize_name(parts[0]), Version(parts[1])
    except InvalidVersion:
        return None

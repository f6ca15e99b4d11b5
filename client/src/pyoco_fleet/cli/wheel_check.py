"""Looks at a wheel before it is uploaded: what workers and people will miss in it."""

import configparser
import zipfile
from email.parser import Parser
from pathlib import Path

from .texts import t

_SHORTEST_USAGE = 80
_DOCUMENTATION = frozenset({"documentation", "docs", "doc", "usage"})


def shortcomings(path: Path, *, wants_entry_points: bool, wants_usage: bool) -> list[str]:
    try:
        with zipfile.ZipFile(path) as wheel:
            metadata = Parser().parsestr(_read(wheel, "METADATA"))
            entry_points = configparser.ConfigParser(interpolation=None, delimiters=("=",), strict=False)
            entry_points.read_string(_read(wheel, "entry_points.txt"))
    except (zipfile.BadZipFile, OSError):
        return [t("wheel_check.no_zip")]
    except configparser.Error:
        return [t("wheel_check.bad_entry_points")]
    if not metadata["Name"] or not metadata["Version"]:
        return [t("wheel_check.no_metadata")]
    links = {url.partition(",")[0].strip().lower() for url in metadata.get_all("Project-URL") or []}
    has_usage = len(str(metadata.get_payload()).strip()) >= _SHORTEST_USAGE or links & _DOCUMENTATION
    found = []
    if wants_entry_points and not any(entry_points.options(section) for section in entry_points.sections()):
        found.append(t("wheel_check.no_entry_points"))
    if wants_usage and not has_usage:
        found.append(t("wheel_check.no_usage"))
    return found


def _read(wheel: zipfile.ZipFile, name: str) -> str:
    for member in wheel.namelist():
        if member.endswith(f".dist-info/{name}"):
            return wheel.read(member).decode("utf-8", "replace")
    return ""

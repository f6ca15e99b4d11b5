"""Small real wheels, as a build tool would make them: metadata, tags, entry points, and a RECORD with hashes."""

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# Every member has the same time, so that the same wheel is the same bytes.
_MOMENT = (2026, 1, 1, 0, 0, 0)


def wheel_name(
    name: str, version: str, *, python: str = "py3", abi: str = "none", platform: str = "any", build: str = ""
) -> str:
    """The file name; `name` is written as build tools do, with underscores."""
    parts = [name.replace("-", "_").replace(".", "_"), version, *([build] if build else []), python, abi, platform]
    return "-".join(parts) + ".whl"


def build_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    modules: Mapping[str, str] | None = None,
    entry_points: Mapping[str, Mapping[str, str]] | None = None,
    requires: Sequence[str] = (),
    python: str = "py3",
    abi: str = "none",
    platform: str = "any",
    build: str = "",
    members: Mapping[str, bytes] | None = None,
) -> Path:
    """Build a wheel file in `folder`.

    `modules` maps paths in the wheel to their text (`{"shop/__init__.py": "…"}`; by default one module that knows its
    version), `entry_points` groups to names to objects (`{"pyoco.tasks": {"greet": "shop.tasks:greet"}}`). `members`
    are added as they are and win over what would be there otherwise, which is how a wheel is made wrong on purpose.
    """
    file_name = wheel_name(name, version, python=python, abi=abi, platform=platform, build=build)
    package, info = file_name.split("-")[0], f"{file_name.split('-')[0]}-{version}.dist-info"
    texts = modules if modules is not None else {f"{package}.py": f"VERSION = {version!r}\n"}
    content = {path: text.encode() for path, text in texts.items()}
    content[f"{info}/METADATA"] = _metadata(name, version, requires)
    content[f"{info}/WHEEL"] = _wheel(python, abi, platform, build)
    if entry_points:
        content[f"{info}/entry_points.txt"] = _entry_points(entry_points)
    content |= members or {}
    content.setdefault(f"{info}/RECORD", _record(content, f"{info}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in content.items():
            archive.writestr(zipfile.ZipInfo(member, _MOMENT), data, zipfile.ZIP_DEFLATED)
    return path


def upload_of(wheel: Path) -> dict[str, tuple[str, bytes]]:
    """The argument `files=` for a POST /wheels."""
    return {"wheel": (wheel.name, wheel.read_bytes())}


def _metadata(name: str, version: str, requires: Sequence[str]) -> bytes:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    return ("\n".join(lines) + "\n").encode()


def _wheel(python: str, abi: str, platform: str, build: str) -> bytes:
    tags = [f"Tag: {p}-{a}-{m}" for p in python.split(".") for a in abi.split(".") for m in platform.split(".")]
    pure = "true" if platform == "any" and abi == "none" else "false"
    lines = ["Wheel-Version: 1.0", "Generator: fleet_testkit", f"Root-Is-Purelib: {pure}", *tags]
    return ("\n".join([*lines, *([f"Build: {build}"] if build else [])]) + "\n").encode()


def _entry_points(groups: Mapping[str, Mapping[str, str]]) -> bytes:
    sections = [f"[{group}]\n" + "".join(f"{n} = {o}\n" for n, o in names.items()) for group, names in groups.items()]
    return "\n".join(sections).encode()


def _record(content: Mapping[str, bytes], own_path: str) -> bytes:
    lines = []
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{own_path},,\n"]).encode()

"""Checks the contents of an uploaded wheel: they match its file name and are safe to unpack."""

import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from typing import IO

from packaging.tags import parse_tag
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from .errors import InvalidUpload, shown
from .names import WheelName

# Limits of what is read. The largest wheels known have some 30,000 files and 4 MB of names.
_MOST_FILES = 50_000
_LARGEST_DIRECTORY_BYTES = 16 * 1024 * 1024
_LARGEST_METADATA_BYTES = 2 * 1024 * 1024
_LARGEST_WHEEL_FILE_BYTES = 256 * 1024
# Above this, a wheel that unpacks to more than a hundred times its size is taken for a zip bomb.
_HARMLESS_UNPACKED_BYTES = 32 * 1024 * 1024
_LARGEST_RATIO = 100

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s4B4HL2L5H2L")
_ENCRYPTED, _UTF8 = 0x1, 0x800


@dataclass(frozen=True, slots=True)
class _Directory:
    """The position of the central directory in a zip archive."""

    start: int
    size: int
    files: int


def check_archive(file: IO[bytes], wheel: WheelName, *, most_unpacked_bytes: int) -> None:
    """InvalidUpload if the file does not match its name or is not safe to unpack. Slow, and blocks."""
    size = file.seek(0, 2)
    _check_directory(file, _find_directory(file, size))
    try:
        with zipfile.ZipFile(file) as archive:
            _check_members(archive.infolist(), size, most_unpacked_bytes)
            _check_info(archive, wheel)
    except (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError, RuntimeError) as error:
        raise _bad(f"the archive cannot be read: {shown(str(error) or type(error).__name__)}") from error


def _find_directory(file: IO[bytes], size: int) -> _Directory:
    """Find and limit the central directory, before `zipfile` trusts sizes that the upload claims."""
    if size < _END.size:
        raise _bad("the file is no zip archive, so it is no wheel")
    file.seek(0)
    begins_well = file.read(4) == b"PK\x03\x04"
    file.seek(size - _END.size)
    signature, _, _, _, files, length, start, comment = _END.unpack(file.read(_END.size))
    if not begins_well or signature != b"PK\x05\x06" or comment:
        raise _bad("the file is no zip archive as build tools write it, so it is no wheel")
    end = size - _END.size
    place64 = end - _END64_LOCATOR.size - _END64.size
    if place64 > 0:
        file.seek(place64)
        end64 = _END64.unpack(file.read(_END64.size))
        if file.read(4) == b"PK\x06\x07":
            if end64[0] != b"PK\x06\x06":
                raise _bad("the archive's directory is damaged")
            end, files, length, start = place64, end64[7], end64[8], end64[9]
    if start + length != end or files > _MOST_FILES or length > _LARGEST_DIRECTORY_BYTES:
        raise _bad(f"the archive's directory is damaged, or it has more than {_MOST_FILES} files")
    return _Directory(start, length, files)


def _check_directory(file: IO[bytes], directory: _Directory) -> None:
    """Count the entries first: `zipfile` reads until the directory ends, however many were announced."""
    file.seek(directory.start)
    data = file.read(directory.size)
    place = count = 0
    while place + _ENTRY.size <= len(data):
        fields = _ENTRY.unpack_from(data, place)
        if fields[0] != b"PK\x01\x02":
            break
        place += _ENTRY.size + sum(fields[12:15])
        count += 1
    if place != len(data) or count != directory.files:
        raise _bad("the archive's directory is damaged")


def _check_members(members: list[zipfile.ZipInfo], size: int, most_unpacked_bytes: int) -> None:
    unpacked = 0
    names: set[str] = set()
    for member in members:
        _check_name(member)
        if member.filename in names:
            raise _bad(f"the archive has {_named(member)} twice")
        names.add(member.filename)
        if member.flag_bits & _ENCRYPTED:
            raise _bad(f"{_named(member)} is encrypted")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _bad(f"{_named(member)} is compressed in a way that not every installer knows")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _bad(f"{_named(member)} is a link or a device; a wheel has files only")
        unpacked += member.file_size
    if unpacked > most_unpacked_bytes:
        raise _bad(
            f"the wheel unpacks to {unpacked} bytes, more than the allowed {most_unpacked_bytes}; make it smaller, "
            "or raise PYOCO_WHEEL_MAX_UNPACKED_BYTES"
        )
    if unpacked > _HARMLESS_UNPACKED_BYTES and unpacked > _LARGEST_RATIO * size:
        raise _bad(f"the wheel unpacks to {unpacked} bytes, more than {_LARGEST_RATIO} times its size")


def _check_name(member: zipfile.ZipInfo) -> None:
    """Refuse a path that could leave the target folder when unpacked, on any system."""
    name = member.orig_filename
    parts = name.removesuffix("/").split("/")
    if (
        not name.isprintable()
        or "\\" in name
        or ":" in parts[0]
        or any(part in ("", ".", "..") for part in parts)
        or not (name.isascii() or member.flag_bits & _UTF8)
    ):
        raise _bad(f"{_named(member)} is no path that may stand in a wheel")


def _check_info(archive: zipfile.ZipFile, wheel: WheelName) -> None:
    folders = {top for name in archive.namelist() if (top := name.split("/")[0]).lower().endswith(".dist-info")}
    if len(folders) != 1:
        found = "none" if not folders else ", ".join(sorted(shown(folder) for folder in folders)[:5])
        raise _bad(f"a wheel has one folder *.dist-info; this one has {found}")
    folder = folders.pop()
    metadata = _read_headers(archive, f"{folder}/METADATA", _LARGEST_METADATA_BYTES)
    name, version = _only(metadata, "Name", "METADATA"), _only(metadata, "Version", "METADATA")
    if canonicalize_name(name) != wheel.package:
        raise _bad(f"the file name says the package {wheel.package}, its METADATA says {shown(name)!r}")
    if not _is_version(version, wheel.version):
        raise _bad(f"the file name says version {wheel.version}, its METADATA says {shown(version)!r}")
    stem, _, folder_version = folder[: -len(".dist-info")].rpartition("-")
    if canonicalize_name(stem) != wheel.package or not _is_version(folder_version, wheel.version):
        raise _bad(f"the file name says {wheel.package} {wheel.version}, its folder is {shown(folder)!r}")
    tags = _read_headers(archive, f"{folder}/WHEEL", _LARGEST_WHEEL_FILE_BYTES).get_all("Tag") or []
    said = {tag for text in tags if text.count(".") < 10 and text.count("-") == 2 for tag in parse_tag(text.strip())}
    if said != wheel.tags:
        by_name, by_file = (", ".join(sorted(map(str, some))[:5]) or "none" for some in (wheel.tags, said))
        raise _bad(f"the file name says the tags {by_name}, its WHEEL says {shown(by_file)}")
    if f"{folder}/RECORD" not in archive.NameToInfo:
        raise _bad(f"{shown(folder)}/RECORD is missing")


def _read_headers(archive: zipfile.ZipFile, path: str, most_bytes: int) -> Message:
    member = archive.NameToInfo.get(path)
    if member is None:
        raise _bad(f"{shown(path)} is missing")
    if member.file_size > most_bytes:
        raise _bad(f"{shown(path)} is larger than {most_bytes} bytes")
    with archive.open(member) as file:
        return BytesHeaderParser().parsebytes(file.read(most_bytes))


def _only(headers: Message, name: str, where: str) -> str:
    values = headers.get_all(name) or []
    if len(values) != 1:
        raise _bad(f"{where} has {len(values)} lines {name}; it must have one")
    return str(values[0]).strip()


def _is_version(text: str, version: Version) -> bool:
    try:
        return Version(text) == version
    except InvalidVersion:
        return False


def _named(member: zipfile.ZipInfo) -> str:
    return repr(shown(member.orig_filename))


def _bad(reason: str) -> InvalidUpload:
    return InvalidUpload("wheel", reason)

"""A wheel is looked into before it is registered: it is what its name says, and safe to unpack."""

import io
import stat
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet_testkit.wheels import build_wheel
from fleet_wheels_api.archive import check_archive
from fleet_wheels_api.errors import InvalidUpload
from fleet_wheels_api.names import parse_name

INFO = "shop-1.0.dist-info"
NAME = "shop-1.0-py3-none-any.whl"


def check(data: bytes, name: str = NAME, *, most_unpacked_bytes: int = 10**9) -> None:
    check_archive(io.BytesIO(data), parse_name(name), most_unpacked_bytes=most_unpacked_bytes)


def refusal(data: bytes, name: str = NAME, *, most_unpacked_bytes: int = 10**9) -> str:
    with pytest.raises(InvalidUpload) as refused:
        check(data, name, most_unpacked_bytes=most_unpacked_bytes)
    assert refused.value.http_status == 422
    assert len(refused.value.message) < 600
    return refused.value.message


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    return build_wheel(tmp_path, "shop").read_bytes()


def with_member(good: bytes, member: zipfile.ZipInfo | str, data: bytes = b"x", compression: int = 0) -> bytes:
    """The same wheel with one more member."""
    buffer = io.BytesIO(good)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(member, data, compression)
    return buffer.getvalue()


def test_wheels_of_all_kinds_are_taken(tmp_path: Path, good: bytes) -> None:
    check(good)
    tasks = build_wheel(
        tmp_path,
        "Shop.Tasks",
        "1.0",
        entry_points={"pyoco.tasks": {"greet": "shop:greet"}},
        requires=["pyoco"],
        python="py2.py3",
        build="3",
    )
    check(tasks.read_bytes(), tasks.name)
    native = build_wheel(
        tmp_path, "shop", python="cp311", abi="cp311", platform="manylinux_2_17_x86_64.manylinux2014_x86_64"
    )
    check(native.read_bytes(), native.name)
    check(with_member(good, "shop/dáta/naïve file.txt"))
    check(with_member(good, "shop/", b""))


def test_a_name_that_differs_from_the_metadata_is_refused_with_both(good: bytes) -> None:
    assert "package store, its METADATA says 'shop'" in refusal(good, "store-1.0-py3-none-any.whl")
    assert "version 2.0, its METADATA says '1.0'" in refusal(good, "shop-2.0-py3-none-any.whl")
    reason = refusal(good, "shop-1.0-cp311-cp311-win_amd64.whl")
    assert "tags cp311-cp311-win_amd64, its WHEEL says py3-none-any" in reason


@pytest.mark.parametrize("missing", ["METADATA", "WHEEL", "RECORD"])
def test_what_every_wheel_has_must_be_there(good: bytes, missing: str) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(good)) as whole, zipfile.ZipFile(buffer, "w") as rest:
        for member in whole.infolist():
            if not member.filename.endswith(missing):
                rest.writestr(member, whole.read(member))
    assert f"{INFO}/{missing} is missing" in refusal(buffer.getvalue())


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({f"{INFO}/METADATA": b"Name: shop\nName: other\nVersion: 1.0\n"}, "2 lines Name"),
        ({f"{INFO}/METADATA": b"Version: 1.0\n"}, "0 lines Name"),
        ({f"{INFO}/METADATA": b"Name: shop\nVersion: \xff\xfe\n"}, "version 1.0"),
        ({f"{INFO}/METADATA": b"Name: sh\0p\nVersion: 1.0\n"}, "package shop"),
        ({f"{INFO}/METADATA": b"\xff" * 3_000_000}, "larger than"),
        ({f"{INFO}/WHEEL": b"Tag: py3-none-any\nTag: py2-none-any\n"}, "its WHEEL says py2-none-any, py3-none-any"),
        ({f"{INFO}/WHEEL": b"Wheel-Version: 1.0\n"}, "its WHEEL says none"),
        ({f"{INFO}/WHEEL": b"Tag: " + b"a." * 5000 + b"a-b-c\n"}, "its WHEEL says none"),
        ({"other-1.0.dist-info/METADATA": b"Name: other\nVersion: 1.0\n"}, "one folder *.dist-info"),
        ({"SHOP-1.0.DIST-INFO/METADATA": b"Name: shop\nVersion: 1.0\n"}, "one folder *.dist-info"),
    ],
)
def test_metadata_that_is_wrong_is_refused(tmp_path: Path, members: dict[str, bytes], reason: str) -> None:
    assert reason in refusal(build_wheel(tmp_path, "shop", members=members).read_bytes())


def test_a_dist_info_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    wheel = build_wheel(
        tmp_path, "shop", "2.0", members={"shop-2.0.dist-info/METADATA": b"Name: shop\nVersion: 1.0\n"}
    )
    assert "its folder is 'shop-2.0.dist-info'" in refusal(wheel.read_bytes())


@pytest.mark.parametrize(
    "path",
    [
        "../evil.py",
        "shop/../../evil.py",
        "/etc/evil.py",
        "C:/evil.py",
        "c:evil.py",
        "..\\evil.py",
        "shop\\evil.py",
        "shop//evil.py",
        "shop/./evil.py",
        "shop/ev\nil.py",
        "shop/ev\x7fil.py",
        "shop/ev\u202eil.py",
    ],
)
def test_paths_that_leave_their_folder_or_hide_something_are_refused(good: bytes, path: str) -> None:
    assert "no path that may stand in a wheel" in refusal(with_member(good, path))


def test_a_name_that_goes_on_after_a_nul_is_refused(good: bytes) -> None:
    data = with_member(good, "shop/evilXpy").replace(b"shop/evilXpy", b"shop/evil\0py")
    assert "no path that may stand in a wheel" in refusal(data)


def test_a_name_in_an_unknown_encoding_is_refused(good: bytes) -> None:
    data = with_member(good, "shop/evilXpy").replace(b"shop/evilXpy", b"shop/evil\xffpy")
    assert "no path that may stand in a wheel" in refusal(data)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(good: bytes, kind: int) -> None:
    member = zipfile.ZipInfo("shop/link")
    member.external_attr = (kind | 0o777) << 16
    assert "link or a device" in refusal(with_member(good, member, b"/etc/passwd"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_is_there_twice_is_refused(good: bytes) -> None:
    assert "twice" in refusal(with_member(good, f"{INFO}/METADATA", b"Name: shop\nVersion: 1.0\n"))


def patched(data: bytes, offset: int, value: int) -> bytes:
    """Change a 16-bit field of the last member's entry in the directory, and of its own header."""
    central, local = data.rindex(b"PK\x01\x02"), data.rindex(b"PK\x03\x04")
    changed = bytearray(data)
    struct.pack_into("<H", changed, central + offset, value)
    struct.pack_into("<H", changed, local + offset - 2, value)
    return bytes(changed)


def test_encrypted_and_strangely_compressed_members_are_refused(good: bytes) -> None:
    assert "encrypted" in refusal(patched(good, 8, 0x1))
    assert "compressed in a way" in refusal(patched(good, 10, 99))
    assert "compressed in a way" in refusal(with_member(good, "shop/x", b"x" * 100, zipfile.ZIP_LZMA))


def test_a_zip_bomb_is_refused_by_its_size_and_by_its_ratio(good: bytes) -> None:
    bomb = with_member(good, "shop/zeros", bytes(64 * 1024 * 1024), zipfile.ZIP_DEFLATED)
    assert len(bomb) < 100_000
    assert "more than 100 times its size" in refusal(bomb)
    assert "more than the allowed 1000000" in refusal(bomb, most_unpacked_bytes=1_000_000)


def test_a_small_file_that_compresses_well_is_no_bomb(good: bytes) -> None:
    check(with_member(good, "shop/zeros", bytes(16 * 1024 * 1024), zipfile.ZIP_DEFLATED))


def test_too_many_members_are_refused_without_reading_them(good: bytes) -> None:
    buffer = io.BytesIO(good)
    with zipfile.ZipFile(buffer, "a") as archive:
        for number in range(50_001):
            archive.writestr(f"shop/{number}", b"")
    assert "more than 50000 files" in refusal(buffer.getvalue())


def with_end(data: bytes, **fields: int) -> bytes:
    """The same archive with another end record."""
    end = struct.Struct("<4s4H2LH")
    values = list(end.unpack(data[-end.size :]))
    for name, value in fields.items():
        values[["", "", "", "here", "files", "size", "start", "comment"].index(name)] = value
    return data[: -end.size] + end.pack(*values)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"not a zip at all" * 10,
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data[1:],
        lambda data: b"#!/bin/sh\n" + data,
        lambda data: data + b"tail",
        lambda data: with_end(data, comment=4) + b"tail",
        lambda data: with_end(data, files=1),
        lambda data: with_end(data, files=65535),
        lambda data: with_end(data, size=0xFFFFFFF0),
        lambda data: with_end(data, start=0),
        lambda data: data.replace(b"PK\x01\x02", b"PK\x01\x03", 1),
        lambda data: data.replace(b"PK\x03\x04", b"PK\x03\x05"),
    ],
)
def test_what_is_no_archive_or_a_damaged_one_is_refused(good: bytes, damage: Callable[[bytes], bytes]) -> None:
    assert refusal(damage(good)).startswith("wheel: ")


def test_damaged_metadata_is_refused(good: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        member = archive.getinfo(f"{INFO}/METADATA")
    place = member.header_offset + 30 + len(member.filename)
    damaged = bytearray(good)
    damaged[place : place + member.compress_size] = bytes(member.compress_size)
    assert "cannot be read" in refusal(bytes(damaged))


def test_an_archive_with_large_numbers_is_read_as_well(good: bytes) -> None:
    """What a tool writes that always uses the 64-bit form."""
    end = struct.Struct("<4s4H2LH")
    _, _, _, _, files, size, start, _ = end.unpack(good[-end.size :])
    place = len(good) - end.size
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, files, files, size, start)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, place, 1)
    marked = end.pack(b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    check(good[:place] + end64 + locator + marked)
    lie = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, files, 10**12, size, start)
    assert "directory is damaged" in refusal(good[:place] + lie + locator + marked)


@given(place=st.integers(0, 10**6), value=st.integers(0, 255), length=st.integers(0, 10**6))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_changed_or_cut_off_the_answer_is_yes_or_a_sentence(
    good: bytes, place: int, value: int, length: int
) -> None:
    data = bytearray(good)
    data[place % len(data)] = value
    with suppress(InvalidUpload):
        check(bytes(data[: length or None]))

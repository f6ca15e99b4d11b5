"""Where a worker keeps its wheels: whole trees only, one worker at a time, nothing left that nobody uses."""

import asyncio
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_contracts.wheel import InstalledWheel
from fleet_testkit.waiting import eventually, wait_until
from fleet_testkit.wheels import build_wheel
from fleet_worker.wheels.choice import Interpreter
from fleet_worker.wheels.home import WheelHome
from fleet_worker.wheels.install import InstallFailed, install, why_unusable
from fleet_worker.wheels.own_packages import own_packages

from .wheel_store import pips_of

HERE = Interpreter.here(own_packages())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


@pytest.fixture
def home(folder: Path) -> Iterator[WheelHome]:
    with WheelHome.taken(folder, "py") as home:
        yield home


def described(name: str = "a", nuid: str = "n1") -> InstalledWheel:
    return InstalledWheel(name=f"{name}-1.0-py3-none-any.whl", package=name, version="1.0", nuid=nuid)


async def add(home: WheelHome, tmp_path: Path, wheel: InstalledWheel) -> Path:
    file = build_wheel(tmp_path / "in", wheel.package, modules={f"{wheel.package}/__init__.py": "X = 1\n"})
    with home.scratch_folder() as scratch:
        await install(file, into=scratch / "tree", scratch=scratch, timeout_seconds=60)
        home.add(wheel, scratch / "tree")
    return home.path_of(wheel)


async def test_a_restarted_worker_finds_the_set_in_force_and_nothing_unfinished(
    home: WheelHome, folder: Path, tmp_path: Path
) -> None:
    wheel, other = described("a"), described("b")
    path = await add(home, tmp_path, wheel)
    await add(home, tmp_path, other)
    home.note([wheel])
    with home.scratch_folder() as scratch:
        (scratch / "half").touch()
        next_life = WheelHome(path.parents[1], "py")
        next_life._look_around()
        assert not scratch.exists()
    assert next_life.left.wheels == [wheel]
    assert next_life.left.paths == [str(path)]
    assert (next_life.has(wheel), next_life.has(other)) == (True, False)
    next_life.keep_only(next_life.left.paths)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["missing", "short", "tree", "note", "other python", "other content"])
async def test_what_is_not_whole_is_not_used(home: WheelHome, tmp_path: Path, damage: str) -> None:
    wheel = described("a")
    path = await add(home, tmp_path, wheel)
    home.note([wheel])
    match damage:
        case "missing":
            (path / "a" / "__init__.py").unlink()
        case "short":
            (path / "a" / "__init__.py").write_text("")
        case "tree":
            path.rename(path.with_name("elsewhere"))
        case "note":
            (path.parents[1] / "wheels.json").write_text('{"interpreter": "py", "whe')
        case "other content":
            home.note([described("a", nuid="n2")])
    next_life = WheelHome(path.parents[1], "other" if damage == "other python" else "py")
    next_life._look_around()
    assert next_life.left.wheels == ()
    assert not next_life.has(wheel)


def test_a_folder_has_a_home_for_each_living_worker_and_gives_it_to_the_next(folder: Path) -> None:
    with WheelHome.taken(folder) as first, WheelHome.taken(folder) as second:
        homes = {first.path_of(described()).parents[1].name, second.path_of(described()).parents[1].name}
        assert homes == {"1", "2"}
    with WheelHome.taken(folder) as again:
        assert again.path_of(described()).parents[1].name == "1"


async def test_installing_writes_nothing_outside_and_needs_no_index(tmp_path: Path) -> None:
    file = build_wheel(
        tmp_path / "in",
        "acme",
        requires=["not-there-at-all"],
        entry_points={"console_scripts": {"acme": "acme:main"}},
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    await install(file, into=scratch / "tree", scratch=scratch, timeout_seconds=60)
    assert sorted(os.listdir(tmp_path)) == ["in", "scratch"]
    assert (scratch / "tree" / "acme.py").exists()
    assert (scratch / "tree" / "bin" / "acme").exists()
    assert (scratch / "tree" / "acme-1.0.dist-info" / "entry_points.txt").exists()


async def test_a_failing_install_reports_the_output_of_pip(tmp_path: Path) -> None:
    file = build_wheel(tmp_path, "bad", members={"bad-1.0.dist-info/WHEEL": b"Wheel-Version: 9.0\n"})
    with pytest.raises(InstallFailed, match=r"bad-1\.0-py3-none-any\.whl cannot be installed: .*Wheel-Version.*9\.0"):
        await install(file, into=tmp_path / "tree", scratch=tmp_path, timeout_seconds=60)


@pytest.mark.parametrize("how", ["too slow", "cancelled"])
async def test_an_install_that_is_broken_off_leaves_no_process(tmp_path: Path, how: str) -> None:
    file = build_wheel(tmp_path, "acme", modules={f"acme/m{number}.py": "X = 1\n" for number in range(2000)})
    timeout = 0.3 if how == "too slow" else 60.0
    installing = asyncio.create_task(install(file, into=tmp_path / "tree", scratch=tmp_path, timeout_seconds=timeout))

    async def has_begun() -> bool:
        return bool(pips_of(os.getpid()))

    await eventually(has_begun, what="pip at work")
    if how == "cancelled":
        installing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await installing
    else:
        with pytest.raises(InstallFailed, match=r"was not installed within 0\.3 s"):
            await installing
    wait_until(lambda: not pips_of(os.getpid()), what="no pip left")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"", "cannot be opened"), (b"PK\x03\x04 and no more", "cannot be opened"), (None, "has no METADATA")],
)
def test_what_is_no_wheel_is_refused(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    file = tmp_path / "a-1.0-py3-none-any.whl"
    if content is None:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.py", "")
    else:
        file.write_bytes(content)
    with pytest.raises(InstallFailed, match=sentence):
        why_unusable(file, HERE)


def test_modules_are_found_wherever_a_wheel_has_them(tmp_path: Path) -> None:
    hidden = build_wheel(tmp_path, "hidden", members={"hidden-1.0.data/purelib/pyoco/__init__.py": b""})
    assert "it brings the module pyoco" in (why_unusable(hidden, HERE) or "")
    script = build_wheel(tmp_path, "scripted", members={"scripted-1.0.data/scripts/pyoco.py": b""})
    assert why_unusable(script, HERE) is None

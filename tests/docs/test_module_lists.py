"""READMEs that list files list all of them, once."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


@pytest.mark.parametrize("package", ["services/runs-api/src/fleet_runs_api", "launcher/src/fleet_launcher"])
def test_every_module_is_named_in_the_row_of_its_package(package: str) -> None:
    source = ROOT / package
    text = (source.parents[1] / "README.md").read_text()
    rows = re.findall(r"^\| (?:`([a-z_]+/)`)? ?\| [^|]+ \| (.+) \|$", text, re.MULTILINE)
    named = {folder: set(re.findall(r"`([a-z_]+(?:\.py|/))`", modules)) for folder, modules in rows}
    for folder in ["", *(f"{found.parent.name}/" for found in source.glob("*/__init__.py"))]:
        modules = {file.name for file in (source / folder).glob("*.py")} - {"__init__.py", "__main__.py"}
        packages = {f"{found.parent.name}/" for found in (source / folder).glob("*/__init__.py")} if folder else set()
        if folder != "dead_letters/":  # in a chapter of its own
            assert named[folder] - {"__main__.py"} == modules | packages, folder or "the modules beside the packages"
    for file in (source / "dead_letters").glob("[a-z]*.py"):
        assert f"`dead_letters/{file.name}`" in text


def test_every_test_file_of_the_stack_is_listed_once_with_its_promise() -> None:
    text = (TESTS / "README.md").read_text()
    rows = text[text.index("| file | the promise |") : text.index("## How they are written")].splitlines()[2:]
    named = []
    for row in filter(None, rows):
        folder = ""
        for word in re.findall(r"`([^`]+)`", row.split("|")[1]):
            folder, _, file = word.rpartition("/") if "/" in word else (folder, "/", word)
            named.append(f"{folder}/{file}")
    whole_folders = [name for name in named if name.endswith("/")]
    files = {str(file.relative_to(TESTS)) for file in TESTS.glob("*/test_*.py")}
    covered = {file for file in files if file.startswith(tuple(whole_folders))}
    assert sorted(named) == sorted([*whole_folders, *(files - covered)])

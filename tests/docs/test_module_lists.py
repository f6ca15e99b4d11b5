"""READMEs that list files list all of them, once."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
RUNS_API = TESTS.parent / "services/runs-api"


def test_every_module_has_its_line() -> None:
    text = (RUNS_API / "README.md").read_text()
    table = text[text.index("## Modules") : text.index("## The way of a submit")]
    named = re.findall(r"`([a-z_]+(?:\.py|/))`", table)
    source = RUNS_API / "src/fleet_runs_api"
    modules = {file.name for file in source.glob("*.py")} - {"__init__.py"}
    packages = {f"{folder.parent.name}/" for folder in source.glob("*/__init__.py")}
    assert (modules | packages) - set(named) == set()
    in_routes = {file.name for file in source.glob("routes/*.py")}
    assert set(named) - modules - packages - in_routes == set()


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

"""The README of the runs service tells of every module that it has."""

import re
from pathlib import Path

RUNS_API = Path(__file__).parents[2] / "services/runs-api"


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

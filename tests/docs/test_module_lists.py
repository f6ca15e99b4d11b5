"""The README of the runs service tells of every module that it has."""

import fnmatch
import re
from pathlib import Path

RUNS_API = Path(__file__).parents[2] / "services/runs-api"


def test_every_module_has_its_line() -> None:
    text = (RUNS_API / "README.md").read_text()
    table = text[text.index("## Modules") : text.index("## The way of a submit")]
    named = re.findall(r"`([a-z_*]+\.py)`", table)
    modules = {file.name for file in (RUNS_API / "src/fleet_runs_api").glob("*.py")} - {"__init__.py"}
    assert {name for name in modules if not any(fnmatch.fnmatch(name, pattern) for pattern in named)} == set()
    assert {pattern for pattern in named if not fnmatch.filter(modules, pattern)} == set()

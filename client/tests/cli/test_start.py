"""The help is there at once: nothing is imported that only commands need."""

import json
import subprocess
import sys

import pytest

_PROBE = """
import contextlib, io, json, sys
from pyoco_fleet.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(
    ("argv", "not_needed"),
    [
        (["--help"], {"httpx2", "pydantic", "rich", "yaml", "tenacity", "asyncio", "json", "dataclasses", "typing"}),
        (["submit", "--help"], {"httpx2", "pydantic", "rich", "yaml", "tenacity", "asyncio"}),
    ],
)
def test_help_imports_nothing_heavy(argv: list[str], not_needed: set[str]) -> None:
    run = subprocess.run([sys.executable, "-c", _PROBE, *argv], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in json.loads(run.stdout)}
    # The probe itself needs json.
    assert not imported & (not_needed - {"json"})

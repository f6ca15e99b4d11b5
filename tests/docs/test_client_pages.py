"""The Python of the client's pages runs as it is written, one block after the other."""

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from fleet_testkit.fleet import Fleet

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("docs/how-to/from-a-script.md", ["Hello, Ada!", "explode -> ValueError: no disk", "runs wait again"]),
        ("docs/how-to/from-a-notebook.md", []),
        ("client/README.md", ["Hello, Grace!"]),
    ],
)
def test_the_code_of_a_page_runs(
    stack: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: str, printed: list[str]
) -> None:
    monkeypatch.setenv("PYOCO_SERVER", stack.url)
    names: dict[str, Any] = {"__name__": page}
    for block in re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL):
        here = block.replace("http://127.0.0.1:8000", stack.url)
        # As notebooks do.
        code = compile(here, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        done = eval(code, names)
        if inspect.iscoroutine(done):
            asyncio.run(done)
    said = capsys.readouterr().out
    assert not [text for text in printed if text not in said]
    assert names.get("greeting", "Hello, Grace!") == "Hello, Grace!"
    assert len(names.get("results", [])) in (0, 100)

"""What the documents point at exists, and the two READMEs show the same commands."""

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]

_FENCED = re.compile(r"^(```+)[^\n]*\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)[^)]*\)|<img[^>]*\ssrc=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
# A file or folder of this repository that a text names between backticks.
_NAMED_PATH = re.compile(r"`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+/?)`")


def _documents() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(name for name in listed.stdout.splitlines() if (ROOT / name).exists())


def _prose(text: str) -> str:
    return _FENCED.sub("", text)


def _anchors(text: str) -> set[str]:
    """The anchors of headings, made as code hosts make them."""
    kept = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in _HEADING.findall(_prose(text)))
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("name", _documents())
def test_every_relative_link_leads_somewhere(name: str) -> None:
    document = ROOT / name
    broken = []
    for pair in _LINK.findall(_INLINE_CODE.sub("", _prose(document.read_text()))):
        target = unquote(pair[0] or pair[1])
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (document.parent / path) if path else document
        if not there.exists() or (
            anchor and there.suffix == ".md" and unquote(anchor) not in _anchors(there.read_text())
        ):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("name", [name for name in _documents() if name.startswith(("docs/", "README", "CONTRIB"))])
def test_every_file_that_a_document_names_exists(name: str) -> None:
    top_level = {path.name for path in ROOT.iterdir()}
    named = {path for path in _NAMED_PATH.findall((ROOT / name).read_text()) if path.split("/")[0] in top_level}
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


def test_both_readmes_show_the_same_commands() -> None:
    assert _code_blocks("README.md") == _code_blocks("README_ja.md")


def _code_blocks(name: str) -> list[str]:
    """Comments in them are prose and may differ."""
    blocks = [block for _, block in _FENCED.findall((ROOT / name).read_text())]
    return ["\n".join(line.partition("  # ")[0].rstrip() for line in block.splitlines()) for block in blocks]

"""`./fleet docs` builds a site whose links lead somewhere and that loads nothing from elsewhere."""

import re
import subprocess
from pathlib import Path

from fleet_testkit.documents.site_hooks import in_site

ROOT = Path(__file__).parents[2]

# Addresses that a browser loads by itself, unlike those of links.
_LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]+)\"|<link\b[^>]*\bhref=\"([^\"]+)\"")


def test_the_site_is_built_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = subprocess.run(
        [ROOT / "fleet", "docs", "--out", tmp_path / "site"], capture_output=True, text=True, check=False, timeout=120
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 50
    elsewhere = {
        f"{page.name}: {address}"
        for page in pages
        for pair in _LOADED.findall(page.read_text())
        if re.match(r"(?:[a-z]+:)?//", address := pair[0] or pair[1])
    }
    assert not elsewhere


def test_a_link_that_leads_nowhere_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# One\n\n[two](index.md#two)\n")
    settings = (ROOT / "mkdocs.yml").read_text().partition("nav:\n")[0]
    hook = "tests/src/fleet_testkit/documents/site_hooks.py"
    (tmp_path / "mkdocs.yml").write_text(settings.replace(hook, str(ROOT / hook)))
    built = subprocess.run(
        [
            ROOT / "fleet",
            "run",
            "mkdocs",
            "build",
            "--strict",
            "-f",
            tmp_path / "mkdocs.yml",
            "-d",
            tmp_path / "site",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert built.returncode != 0
    assert "#two" in built.stderr


def test_links_to_files_beside_the_documentation_become_their_names() -> None:
    text = "[a](../reference/b.md#c) [`x/y.py`](../../x/y.py) [the file](../../x/y.py#L1)\n```\n[a](../../x)\n```\n"
    assert in_site(text, "how-to/one.md", Path("/project/docs")) == (
        "[a](../reference/b.md#c) `x/y.py` the file (`x/y.py`)\n```\n[a](../../x)\n```\n"
    )

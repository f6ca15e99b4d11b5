"""Every image has a lock of just what it needs, cut out of the one lock."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = [
    "services/runs-api/requirements.lock",
    "services/workers-api/requirements.lock",
    "services/wheels-api/requirements.lock",
    "services/auth/requirements.lock",
    "worker/requirements.lock",
    "requirements-build.lock",
]


def packages(lock: str) -> dict[str, str]:
    """Each package with its version, condition and hashes."""
    entries = re.split(r"\n(?=\S)", (ROOT / lock).read_text().strip())
    return {re.split(r"[=\[ ]", entry, maxsplit=1)[0]: " ".join(entry.split()) for entry in entries}


@pytest.mark.parametrize("lock", PARTS)
def test_a_part_has_the_same_versions_and_hashes_as_the_whole(lock: str) -> None:
    whole = {name: entry.replace(" ; ", ";") for name, entry in packages("requirements.lock").items()}
    for name, entry in packages(lock).items():
        assert name in whole, f"{name} is not locked: run ./fleet lock"
        version, hashes = entry.split(" ", 1)[0], set(re.findall(r"sha256:\w+", entry))
        assert version == whole[name].split(" ", 1)[0].split(";")[0], f"{name}: run ./fleet lock"
        assert hashes, name
        assert hashes <= set(re.findall(r"sha256:\w+", whole[name])), f"{name}: run ./fleet lock"


@pytest.mark.parametrize("lock", PARTS)
def test_no_tool_of_developers_gets_into_an_image(lock: str) -> None:
    tools = {"pytest", "mypy", "ruff", "uv", "testcontainers", "schemathesis", "cyclonedx-python-lib"}
    if lock == "worker/requirements.lock":
        tools.remove("uv")  # it installs the libraries of flows
    assert not tools & packages(lock).keys()

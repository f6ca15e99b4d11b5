"""`./fleet sbom` prints a bill of materials that is one, with everything in it."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

from cyclonedx.validation.json import JsonStrictValidator

from fleet_testkit.sbom import SCHEMA

ROOT = Path(__file__).parents[2]


def test_the_bill_of_materials_is_valid_and_names_every_package_and_every_image() -> None:
    printed = subprocess.run([ROOT / "fleet", "sbom"], capture_output=True, text=True, check=True, timeout=120).stdout
    assert JsonStrictValidator(SCHEMA).validate_str(printed) is None
    bom = json.loads(printed)
    assert (bom["bomFormat"], bom["metadata"]["component"]["name"]) == ("CycloneDX", "pyoco-fleet")
    named = {component["purl"] for component in bom["components"]}
    locked = re.findall(r"^(\S+?)==([^\s;]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert len(locked) > 90
    assert {f"pkg:pypi/{name}@{version}" for name, version in locked} <= named
    assert any(name.startswith("pkg:npm/swagger-ui-dist@") for name in named)
    for image in ("nats@2.12-alpine", "postgres@16-alpine", "nginx@1.28-alpine", "python@3.12-slim"):
        assert f"pkg:docker/{image}" in named


def test_every_package_is_under_the_license_that_the_repository_has() -> None:
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")
    members = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]["members"]
    for folder in (".", *members):
        assert tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["license"] == "MIT", folder

"""The software bill of materials as CycloneDX JSON: locked packages, vendored files, images under the containers."""

import json
import re
import sys
import tomllib
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

SCHEMA = SchemaVersion.V1_6

_ROOT = Path(__file__).parents[3]
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)
# In compose.yaml and its layers, and in Dockerfiles; ours are built from the packages.
_IMAGE = re.compile(r"^(?:FROM|\s+image:)\s+(?!pyoco-fleet/)([a-z0-9./_-]+):([\w.-]+)", re.MULTILINE)


def locked_packages() -> dict[str, str]:
    """The version of each package in requirements.lock."""
    return dict(_LOCKED.findall((_ROOT / "requirements.lock").read_text()))


def vendored() -> dict[str, str]:
    """The version of each package of npm whose files the gateway serves."""
    listed = _ROOT / "gateway-nginx/src/fleet_gateway/static/static/vendor/vendored.json"
    return {part["name"]: part["version"] for part in json.loads(listed.read_text())}


def images() -> dict[str, str]:
    """The tag of each image that is not ours."""
    files = [*_ROOT.glob("compose*.yaml"), _ROOT / "Dockerfile", *_ROOT.glob("*/Dockerfile")]
    return {name: tag for file in sorted(files) for name, tag in _IMAGE.findall(file.read_text())}


def sbom() -> str:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    root = Component(
        type=ComponentType.APPLICATION,
        name=project["name"],
        version=project["version"],
        bom_ref=project["name"],
        licenses=[DisjunctiveLicense(id=project["license"])],
    )
    parts = [
        *(_component(ComponentType.LIBRARY, "pypi", name, version) for name, version in locked_packages().items()),
        *(_component(ComponentType.LIBRARY, "npm", name, version) for name, version in vendored().items()),
        *(_component(ComponentType.CONTAINER, "docker", name, tag) for name, tag in images().items()),
    ]
    bom = Bom(components=parts)
    bom.metadata.component = root
    bom.register_dependency(root, parts)
    return make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2)


def _component(kind: ComponentType, registry: str, name: str, version: str) -> Component:
    namespace, _, short = name.rpartition("/")
    purl = PackageURL(registry, namespace or None, short, version)
    return Component(type=kind, name=name, version=version, purl=purl, bom_ref=purl.to_string())


if __name__ == "__main__":
    sys.stdout.write(sbom() + "\n")

"""Runs promtool: the one of this machine, else the one in the image that compose uses."""

import shutil
import subprocess
from pathlib import Path

import yaml

from .compose import why_no_engine

_ROOT = Path(__file__).parents[4]


def prometheus_image() -> str:
    """The image that compose.observability.yaml pins."""
    composed = yaml.safe_load((_ROOT / "compose.observability.yaml").read_text())
    image: str = composed["services"]["prometheus"]["image"]
    return image


def why_no_prometheus() -> str | None:
    """Why no Prometheus can be started here; None if one can."""
    return None if _has_image() else f"there is no image {prometheus_image()}"


def why_no_promtool() -> str | None:
    """Why rules cannot be checked here, in a sentence; None if they can."""
    if shutil.which("promtool"):
        return None
    if (reason := why_no_engine()) is not None:
        return f"there is no promtool on this machine, and {reason}"
    if not _has_image():
        return f"there is no promtool on this machine, and no image {prometheus_image()}"
    return None


def promtool(*arguments: str, folder: Path) -> str:
    """Run promtool in a folder and return its output; an error fails the test."""
    if shutil.which("promtool"):
        command = ["promtool", *arguments]
    else:
        mounted = ["--volume", f"{folder}:/checked:ro", "--workdir", "/checked", "--entrypoint", "promtool"]
        command = ["docker", "run", "--rm", "--network", "none", *mounted, prometheus_image(), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def _has_image() -> bool:
    asked = ["docker", "image", "inspect", prometheus_image()]
    if subprocess.run(asked, capture_output=True, timeout=30, check=False).returncode == 0:
        return True
    pulled = ["docker", "pull", "--quiet", prometheus_image()]
    return subprocess.run(pulled, capture_output=True, timeout=300, check=False).returncode == 0

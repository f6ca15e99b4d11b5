"""The files that are generated from the code."""

from collections.abc import Callable
from pathlib import Path

from .client_reference import client_reference
from .http_reference import http_reference
from .merged_openapi import merged_openapi_text
from .metrics_reference import metrics_reference

ROOT = Path(__file__).parents[4]

FILES: dict[str, Callable[[], str]] = {
    "docs/reference/http.md": http_reference,
    # Served by the gateway as it is.
    "gateway-nginx/src/fleet_gateway/static/openapi.json": merged_openapi_text,
    "docs/reference/metrics.md": metrics_reference,
    "docs/reference/pyoco-client.md": client_reference,
}


def stale() -> list[str]:
    """The names of those that are not what the code makes now."""
    return [name for name, generate in FILES.items() if not _is_current(ROOT / name, generate())]


def _is_current(file: Path, text: str) -> bool:
    return file.exists() and file.read_text() == text


def write_generated() -> list[str]:
    """Write all of them; return their names."""
    for name, generate in FILES.items():
        (ROOT / name).write_text(generate())
    return list(FILES)

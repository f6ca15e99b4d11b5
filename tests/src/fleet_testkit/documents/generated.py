"""The pages that are generated from the code."""

from collections.abc import Callable
from pathlib import Path

from .client_reference import client_reference
from .http_reference import http_reference
from .metrics_reference import metrics_reference

ROOT = Path(__file__).parents[4]

PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/http.md": http_reference,
    "docs/reference/metrics.md": metrics_reference,
    "docs/reference/pyoco-client.md": client_reference,
}


def write_generated() -> list[str]:
    """Write all of them; return their names."""
    for name, generate in PAGES.items():
        (ROOT / name).write_text(generate())
    return list(PAGES)

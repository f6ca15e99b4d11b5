"""Reads the JSON log lines of a part."""

import json
from typing import Any


def log_lines(log: str, **fields: Any) -> list[dict[str, Any]]:
    """The JSON lines of a log that carry these fields; nginx and NATS write other lines as well.

    A last line that is still being written is left for the next look.
    """
    whole = log[: log.rfind("\n") + 1]
    lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
    return [line for line in lines if fields.items() <= line.items()]

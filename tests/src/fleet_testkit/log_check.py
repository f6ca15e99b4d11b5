"""Checks log lines against the log contract: JSON of the schema, no secrets and no payloads."""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

from fleet_contracts.log_events import SERVICE_WORKER

_SCHEMA = Path(__file__).parents[3] / "observability/log-line.schema.json"
_MAX_SHOWN = 20
_SHOWN_CHARACTERS = 600

# Put it into params, bodies and other data that must stay out of the logs: every stack's lines are searched for it.
# It is allowed at DEBUG, and in a worker's line about an exception of a flow.
CANARY = "canary-5ecb1d"
# Secrets, which no line may contain, not even at DEBUG.
_SECRETS = re.compile(rf"pyoco_[A-Za-z0-9-]{{1,64}}_[A-Za-z0-9_-]{{32,128}}|S[ACNOUX][A-Z2-7]{{56}}|secret-{CANARY}")


# A permission violation on NATS, as our processes and nats-server log it.
_REFUSED_BY_NATS = re.compile(r"(permissions|publish|subscription) violation", re.IGNORECASE)
# The connection name of a test that wants to be refused; nats-server logs it in the same line.
REFUSED_ON_PURPOSE = "refused-on-purpose"


@cache
def _validator() -> Any:
    return jsonschema_rs.validator_for(json.loads(_SCHEMA.read_text()))


def fault_of(line: str) -> str | None:
    """The fault of a line; None if it keeps the contract."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        return f"it is no JSON ({error})"
    wrong = [
        f"{'/'.join(map(str, error.instance_path)) or 'line'}: {error.message}"
        for error in _validator().iter_errors(fields)
    ]
    if wrong:
        return "; ".join(wrong[:3])
    if (found := _SECRETS.search(line)) is not None:
        return f"it contains the secret {found.group()[:16]}…"
    if _is_refusal(line):
        return "NATS has refused something, and no test expects it: mend the role in nats_roles.py"
    if fields["level"] != "DEBUG" and CANARY in line and CANARY in json.dumps(_without_exception_of_a_flow(fields)):
        return "it contains what only a DEBUG line may"
    return None


def _without_exception_of_a_flow(fields: dict[str, Any]) -> dict[str, Any]:
    """A worker's line about a run without the message and the traceback of an exception: those may quote params."""
    if fields["service"] != SERVICE_WORKER or "run_id" not in fields:
        return fields
    return {name: value for name, value in fields.items() if name not in ("exc_message", "exc_traceback")}


def check_log_lines(lines: Iterable[str], *, of: str, also_secret: Iterable[str] = ()) -> int:
    """Fail with the first lines that break the contract; return how many were checked.

    Pass whole lines only: a file may end in the middle of a line, when its writer was killed.
    """
    secrets = [secret for secret in also_secret if secret]
    looked = 0
    wrong: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        looked += 1
        fault = fault_of(line) or next((f"it contains {s[:4]}…" for s in secrets if s in line), None)
        if fault is not None and len(wrong) < _MAX_SHOWN:
            wrong.append(f"{of}:{number}: {fault}\n    {line[:_SHOWN_CHARACTERS]}")
    assert not wrong, "log lines break the contract (observability/log-line.schema.json):\n" + "\n".join(wrong)
    return looked


def check_refusals(lines: Iterable[str], *, of: str) -> None:
    """Fail if nats-server's own log lines report a permission violation."""
    refused = [line for line in lines if _is_refusal(line)]
    assert not refused, f"{of} has refused what no test expects: {refused[:_MAX_SHOWN]}"


def _is_refusal(line: str) -> bool:
    return _REFUSED_BY_NATS.search(line) is not None and REFUSED_ON_PURPOSE not in line


def whole_lines(log: Path) -> Iterator[str]:
    """The lines of a log, without a last one that its writer did not finish."""
    text = log.read_text(errors="replace")
    yield from text[: text.rfind("\n") + 1].split("\n")

"""Clients that retry a refused submit under its idempotency key, and a count of its executions."""

from collections import Counter
from pathlib import Path

import httpx

from ..fleet import Fleet
from ..waiting import wait_until

# From a gateway whose service is down, and from a service whose NATS is down.
_COME_AGAIN = {httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT}


def submit_until_accepted(
    fleet: Fleet, label: str, marks: Path, *, seconds: float = 0.0, refused: list[str] | None = None
) -> str:
    """Retry a submit of the flow `signed` until it is accepted; return the run id.

    `refused` collects the label of each submit that was answered 503.
    """
    with httpx.Client(base_url=fleet.url, timeout=30) as client:

        def accepted() -> str | None:
            try:
                answer = client.post(
                    "/runs",
                    json={
                        "flow_name": "signed",
                        "params": {"marks": str(marks), "label": label, "seconds": seconds},
                    },
                    headers={"Idempotency-Key": f"retried:{label}:1760000000000"},
                )
            except httpx.TransportError:
                return None
            assert answer.is_success or answer.status_code in _COME_AGAIN, answer.text
            if refused is not None and answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                refused.append(label)
            return answer.json()["run_id"] if answer.is_success else None

        run_id = wait_until(accepted, within=90, what=f"run {label} being accepted")
        assert run_id is not None
        return run_id


def executions(marks: Path) -> Counter[tuple[str, str]]:
    """How often each (label, run id) was executed, counted outside of the fleet.

    This includes executions that the fleet does not know of.
    """
    return Counter((label, run_id) for label, run_id in map(str.split, marks.read_text().splitlines()))

"""Submits runs and waits for their end through the gateway, as a client with retries does."""

from collections.abc import Iterable
from typing import Any

import httpx

from fleet_contracts.status import RunStatus

from .waiting import wait_until

Snapshot = dict[str, Any]


def submit(client: httpx.Client, flow_name: str, *, tag: str | None = None, **params: Any) -> str:
    """Submit a run, which must be accepted; return its id."""
    answer = client.post("/runs", json={"flow_name": flow_name, "params": params, "tag": tag})
    assert answer.status_code == httpx.codes.OK, answer.text
    assert answer.json()["status"] == RunStatus.PENDING
    run_id: str = answer.json()["run_id"]
    return run_id


def read(client: httpx.Client, run_id: str) -> Snapshot:
    """The run with everything that is known of it."""
    answer = client.get(f"/runs/{run_id}", params={"include": "full"})
    assert answer.status_code == httpx.codes.OK, answer.text
    snapshot: Snapshot = answer.json()
    return snapshot


def wait_status(client: httpx.Client, run_id: str, status: RunStatus, *, within: float = 20.0) -> Snapshot:
    wait_until(lambda: read(client, run_id)["status"] == status, within=within, what=f"run {run_id} {status}")
    return read(client, run_id)


def wait_ended(client: httpx.Client, run_ids: Iterable[str], *, within: float = 30.0) -> list[Snapshot]:
    """Wait until all runs have ended and return them; retries while the gateway or a service is down."""
    waiting = list(run_ids)
    ended: dict[str, Snapshot] = {}

    def all_ended() -> bool:
        for run_id in waiting:
            if run_id not in ended and (snapshot := _try_read(client, run_id)) is not None:
                ended[run_id] = snapshot
        return len(ended) == len(waiting)

    wait_until(all_ended, within=within, what=f"the end of {len(waiting)} runs")
    return [ended[run_id] for run_id in waiting]


def _try_read(client: httpx.Client, run_id: str) -> Snapshot | None:
    try:
        answer = client.get(f"/runs/{run_id}", params={"include": "full"})
    except httpx.TransportError:
        return None
    if answer.is_server_error:
        return None
    assert answer.status_code == httpx.codes.OK, answer.text
    snapshot: Snapshot = answer.json()
    return snapshot if RunStatus(snapshot["status"]).is_terminal else None

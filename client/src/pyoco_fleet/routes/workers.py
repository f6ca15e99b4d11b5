"""Workers and the flows that they offer."""

from typing import Any

from ..calls import Call, as_json, as_text, given

Json = dict[str, Any]


def get_workers(
    *,
    scope: str | None = None,
    state: str | None = None,
    include_hidden: bool | None = None,
    limit: int | None = None,
) -> Call[list[Json]]:
    """Workers, the one seen last first."""
    params = given(scope=scope or None, state=state or None, include_hidden=include_hidden, limit=limit)
    return Call("GET", "/workers", as_json, params=params)


def get_worker(worker_id: str) -> Call[Json]:
    """One worker with its flows and its machine."""
    return Call("GET", "/workers/{worker_id}", as_json, {"worker_id": worker_id})


def patch_worker_hidden(worker_id: str, *, hidden: bool) -> Call[Json]:
    """Hide a worker from lists, or show it again."""
    place = {"worker_id": worker_id}
    return Call("PATCH", "/workers/{worker_id}", as_json, place, json={"hidden": bool(hidden)}, repeatable=True)


def drain_worker(worker_id: str) -> Call[Json]:
    """The worker finishes what it has begun and takes nothing new."""
    return Call("POST", "/workers/{worker_id}/drain", as_json, {"worker_id": worker_id}, repeatable=True)


def resume_worker(worker_id: str) -> Call[Json]:
    """The worker takes jobs again."""
    return Call("POST", "/workers/{worker_id}/resume", as_json, {"worker_id": worker_id}, repeatable=True)


def watch_workers(*, include_hidden: bool | None = None, timeout_sec: int | None = None) -> Call[str]:
    """All workers, then every change, as events."""
    params = given(include_hidden=include_hidden, timeout_sec=timeout_sec)
    return Call("GET", "/workers/events", as_text, params=params)


def list_flows() -> Call[Json]:
    """The flows that live workers offer, and the sources that they could not load."""
    return Call("GET", "/flows", as_json)


def get_flow(flow_name: str) -> Call[Json]:
    """One flow: its params, graph and defaults, and who offers it."""
    return Call("GET", "/flows/{flow_name}", as_json, {"flow_name": flow_name})


def watch_flows(*, timeout_sec: int | None = None) -> Call[str]:
    """The list of flows, and again whenever something in it changes, as events."""
    return Call("GET", "/flows/events", as_text, params=given(timeout_sec=timeout_sec))

"""Workers that only exist in KV: their records and the catalogues of their flows."""

import time
from typing import Any

from fleet_contracts.catalogue import Catalogue, FlowDefaults, FlowOffer, FlowSource, SourceKind, WorkerCatalogue
from fleet_contracts.status import WorkerState
from fleet_contracts.worker_record import WorkerRecord
from fleet_testkit.buckets import Bucket
from fleet_testkit.waiting import eventually

from .conftest import RunsUnderTest

GREETING: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "times": {"type": "integer", "minimum": 1, "default": 1},
        "tone": {"anyOf": [{"enum": ["warm", "cool"]}, {"type": "null"}], "default": None},
        "place": {"$ref": "#/$defs/Place"},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"Place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}


def flow(name: str = "greet", *, version: str | None = None, place: str = "greet.py", **more: Any) -> FlowOffer:
    kind = SourceKind.FILE if version is None else SourceKind.WHEEL
    package = None if version is None else "shop"
    source = FlowSource(kind=kind, place=place, package=package, version=version)
    defaults = more.pop("defaults", FlowDefaults())
    return FlowOffer(name=name, source=source, defaults=defaults, **{"params_schema": GREETING} | more)


async def offer(
    service: RunsUnderTest,
    *flows: FlowOffer,
    worker_id: str = "w1",
    tags: list[str] | None = None,
    silent_in: float = 3600.0,
    loaded_at: float = 1.0,
    reload_error: str | None = None,
    **catalogue: Any,
) -> None:
    """Register a worker that needs no heartbeats for a while; wait until the service knows it."""
    last_seen = time.time() + silent_in - 20.0
    record = WorkerRecord(
        worker_id=worker_id,
        instance_id="i1",
        state=WorkerState.IDLE,
        last_seen_at=last_seen,
        last_heartbeat_at=last_seen,
        tags=tags or ["default"],
    )
    offered = WorkerCatalogue(
        worker_id=worker_id,
        instance_id="i1",
        tags=tags or ["default"],
        loaded_at=loaded_at,
        catalogue=Catalogue(flows=list(flows), **catalogue),
        reload_error=reload_error,
    )
    await Bucket(service.link, "pyoco_workers").put(worker_id, record.encode())
    await Bucket(service.link, "pyoco_flows").put(worker_id, offered.encode())
    known = service.app.state.service.catalogues

    def is_known() -> bool:
        return any(c == offered and r == record for r, c in known.of_live_workers(now=last_seen))

    await eventually(is_known, what=f"the offers of {worker_id}")

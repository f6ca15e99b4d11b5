"""Requests and responses of workers-api (appendix D)."""

from typing import Any

from pydantic import BaseModel, Field, StrictBool

from fleet_contracts.status import ACTIVE_WORKER_STATES, WorkerState
from fleet_contracts.worker_record import Machine, WheelSync, WorkerRecord
from fleet_kit.http.bodies import Body

from .listing import Flag


class EventsQuery(BaseModel):
    include_hidden: Flag = Field(False, description="without it a worker that is hidden is `removed`")
    timeout_sec: int = Field(600, ge=1, le=600, description="the stream ends then")


class WorkerPatch(Body):
    hidden: StrictBool


class WorkerPatched(BaseModel):
    worker_id: str
    hidden: bool
    updated_at: float


class Worker(BaseModel):
    """One worker as it is now: `state` is the effective state."""

    worker_id: str
    instance_id: str
    state: WorkerState
    hidden: bool
    draining: bool
    last_seen_at: float
    last_heartbeat_at: float
    # The v0 name of last_heartbeat_at.
    heartbeat_at: float
    tags: list[str]
    slots: int
    current_run_id: str | None
    current_run_ids: list[str]
    last_run_id: str | None
    last_run_status: str | None
    last_run_started_at: float | None
    last_run_finished_at: float | None
    stopped_at: float | None
    stop_reason: str | None
    wheel_sync: WheelSync
    # Why its flows are not as their files say: an edit that could not be loaded, a file that is broken.
    flows_error: str | None


class WorkerDetail(Worker):
    """All that is known of one worker."""

    # How many of its slots execute a run.
    busy_slots: int
    started_at: float | None
    # By name; cut off if there are very many. Empty for a worker with a resolver of its own.
    flows: list[str]
    machine: Machine


class AllWorkers(BaseModel):
    """All workers, at first and when it is not known what a client has missed; it has an id."""

    workers: list[Worker]
    ts: float


class WorkerChanged(BaseModel):
    """A worker that is new or has changed; it has an id."""

    worker: Worker
    ts: float


class WorkerRemoved(BaseModel):
    """A worker that is gone or hidden; it has an id."""

    worker_id: str
    ts: float


class WorkersUnchanged(BaseModel):
    """Nothing has changed for some seconds."""

    ts: float


# Timestamps that advance although nothing else has changed.
_HEARTBEATS: Any = {
    "last_seen_at": True,
    "last_heartbeat_at": True,
    "heartbeat_at": True,
    "wheel_sync": {"last_attempt_at", "last_success_at", "last_synced_at"},
}
_SUMMARY = set(Worker.model_fields)
_DETAIL = set(WorkerDetail.model_fields)


def summary_json(record: WorkerRecord, state: WorkerState) -> bytes:
    """Encode a `Worker`. The record was validated when it was read: its fields are written as they are."""
    return _shown(record, state).model_dump_json(include=_SUMMARY).encode()


def detail_json(record: WorkerRecord, state: WorkerState) -> bytes:
    """Encode a `WorkerDetail`."""
    # A run that was claimed ahead is a current run, but occupies no slot yet.
    busy = min(record.slots, len(record.current_run_ids)) if state in ACTIVE_WORKER_STATES else 0
    return b'{"busy_slots":%d,' % busy + _shown(record, state).model_dump_json(include=_DETAIL).encode()[1:]


def essence_json(record: WorkerRecord, state: WorkerState) -> bytes:
    """Encode the summary without heartbeats: watchers are notified only if this changes."""
    return _shown(record, state).model_dump_json(include=_SUMMARY, exclude=_HEARTBEATS).encode()


def _shown(record: WorkerRecord, state: WorkerState) -> WorkerRecord:
    return record.model_copy(update={"state": state, "heartbeat_at": record.last_heartbeat_at})

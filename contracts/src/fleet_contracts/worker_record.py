"""The worker registry record, and the effective state of a worker at a given time (appendices F and G)."""

from enum import StrEnum
from typing import Any

from pydantic import Field, model_validator

from .messages import Document
from .status import ACTIVE_WORKER_STATES, WorkerState
from .wheel import InstalledWheel, SkippedWheel


class WheelSyncResult(StrEnum):
    DISABLED = "disabled"
    IDLE = "idle"
    OK = "ok"
    ERROR = "error"


class WheelSync(Document):
    """How far a worker's environment follows the wheel registry."""

    enabled: bool = False
    last_result: WheelSyncResult = WheelSyncResult.DISABLED
    # Why the last attempt failed, in a sentence.
    last_error: str | None = None
    last_attempt_at: float | None = None
    last_success_at: float | None = None
    last_synced_at: float | None = None
    selected_count: int = 0
    updated_count: int = 0
    removed_count: int = 0
    skipped_incompatible_count: int = 0
    selected_wheels: list[str] = []
    updated_wheels: list[str] = []
    removed_wheels: list[str] = []
    skipped_incompatible: list[SkippedWheel] = []
    installed_wheels: list[InstalledWheel] = []


class Machine(Document):
    """The machine of a worker and its resources."""

    host: str | None = None
    pid: int | None = None
    platform: str | None = None
    python_version: str | None = None
    pyoco_version: str | None = None
    fleet_version: str | None = None
    cpu_count: int | None = None
    # Of the worker with all its runners, in per cent of one core.
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None


class WorkerRecord(Document):
    worker_id: str
    instance_id: str
    state: WorkerState
    hidden: bool = False
    last_seen_at: float
    last_heartbeat_at: float
    tags: list[str] = []

    current_run_id: str | None = None
    # All current runs; current_run_id is the one begun last.
    current_run_ids: list[str] = []
    last_run_id: str | None = None
    last_run_status: str | None = None
    last_run_started_at: float | None = None
    last_run_finished_at: float | None = None
    stopped_at: float | None = None
    stop_reason: str | None = None
    slots: int = Field(1, ge=1)
    # Drain requested by an operator: the worker finishes what it has and takes nothing new.
    draining: bool = False
    started_at: float | None = None
    # The flows it can run by name; cut off if there are very many.
    flows: list[str] = []
    # Why they are not as their files say: an edit that could not be loaded, a file that is broken.
    flows_error: str | None = None
    machine: Machine = Machine()
    wheel_sync: WheelSync = WheelSync()

    @model_validator(mode="before")
    @classmethod
    def _read_older_records(cls, data: Any) -> Any:
        """Workers of v0 wrote little more than heartbeat_at, null where a default is meant, and one run at a time."""
        if not isinstance(data, dict):
            return data
        record = {name: value for name, value in data.items() if value is not None or name not in cls.model_fields}
        beats = (record.get(name) for name in ("last_seen_at", "last_heartbeat_at", "heartbeat_at"))
        if (beat := next((beat for beat in beats if beat is not None), None)) is not None:
            record.setdefault("last_seen_at", beat)
            record.setdefault("last_heartbeat_at", beat)
        if record.get("current_run_id") and not record.get("current_run_ids"):
            record["current_run_ids"] = [record["current_run_id"]]
        record.setdefault("instance_id", "")
        record.setdefault("state", WorkerState.RUNNING if record.get("current_run_id") else WorkerState.IDLE)
        return record

    def effective_state(self, *, now: float, disconnect_timeout_sec: float) -> WorkerState:
        """The state at a time: a graceful stop stays; a worker without heartbeats is DISCONNECTED."""
        is_silent = now - self.last_seen_at > disconnect_timeout_sec
        if is_silent and self.state is not WorkerState.STOPPED_GRACEFUL:
            return WorkerState.DISCONNECTED
        return self.state

    def is_alive(self, *, now: float, disconnect_timeout_sec: float) -> bool:
        state = self.effective_state(now=now, disconnect_timeout_sec=disconnect_timeout_sec)
        return state in ACTIVE_WORKER_STATES

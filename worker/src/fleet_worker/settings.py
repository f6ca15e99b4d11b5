"""The worker's settings, read once from command line, environment and .env."""

import os
import re
import socket
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator
from pydantic_settings import NoDecode

from fleet_contracts.names import Tag, WireNames
from fleet_kit.settings import FleetSettings

from .boundary.memory import default_limit_bytes
from .boundary.runner_account import RunnerAccount, RunnerStart

_DEFAULT_FLOWS_DIR = "examples"

ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$")]


def _default_worker_id() -> str:
    host = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname()).strip("-") or "worker"
    return f"{host}-{os.getpid()}"


class WorkerSettings(FleetSettings, WireNames):
    worker_id: str = Field(default_factory=_default_worker_id, pattern=r"^[A-Za-z0-9_-]+$", max_length=128)
    # Folder of <worker id>.nk files: the worker takes id and NATS user of the first that no living worker holds.
    worker_credentials_dir: Path | None = None
    # Comma-separated; empty: the default tag.
    tags: Annotated[list[Tag], NoDecode] = []
    # Runs at once: one runner process each.
    slots: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1, le=1024)
    flow_resolver: str | None = Field(None, pattern=r"^[^:]+:[A-Za-z_]\w*$")
    flows_dir: Path | None = None
    # Whether a change of a file in the flows folder reloads it. SIGHUP always does.
    flows_reload: bool = False
    # KEY=VALUE lines: variables for runners alone.
    flow_env_file: Path | None = None
    # Where the libraries that a flows folder asks for are installed; may be shared by workers of one user.
    flow_libraries_dir: Path = Path(".pyoco/libraries")
    flow_install_timeout_sec: float = Field(600.0, gt=0)
    # Parent of the runs' working folders; unset: a temporary folder that is removed when the worker ends.
    worker_dir: Path | None = None
    # User that runners run as, so that flows cannot read the worker's files; unset: the worker's own user.
    runner_user: str | None = None
    # Allowed in workflow files, comma-separated: modules besides the flow folder's, environment variables.
    workflow_callable_allow: Annotated[list[ModuleName], NoDecode] = []
    workflow_env_allow: Annotated[list[VariableName], NoDecode] = []

    run_heartbeat_interval_sec: float = Field(1.0, gt=0)
    worker_heartbeat_interval_sec: float = Field(5.0, gt=0)
    ack_progress_interval_sec: float = Field(10.0, gt=0)
    cancel_grace_period_sec: float = Field(30.0, ge=0)
    nak_delay_sec: float = Field(2.0, ge=0)
    worker_stop_grace_sec: float = Field(10.0, ge=0)
    # Another worker's run is taken over when its snapshot has not changed for this long.
    run_lost_after_sec: float = Field(4.0, gt=0)
    # A run ends as FAILED after this many deaths of its runner.
    runner_crash_limit: int = Field(3, ge=1)
    # Memory limit of a run, on top of an idle runner's use; 0: no limit, unset: one slot's share of the machine.
    run_memory_max_bytes: int | None = Field(None, ge=0)

    # Address that serves /health, /ready and /metrics; port unset: none.
    monitor_host: str = "127.0.0.1"
    monitor_port: int | None = Field(None, ge=1, le=65535)

    # This many flows, the first that are run, get a histogram each; all others share one.
    metrics_max_flows: int = Field(100, ge=0, le=1000)

    # Log the messages of a flow's exceptions, which may quote params.
    log_exception_messages: bool = True

    dlq_publish_execution_error: bool = True
    max_run_snapshot_bytes: int = Field(262144, ge=1024)
    run_log_max_bytes: int = Field(8 * 1024 * 1024, ge=0)

    wheel_sync_enabled: Literal["0", "1"] = "0"
    wheel_sync_dir: Path = Path(".pyoco/wheels")
    wheel_sync_interval_sec: float = Field(10.0, gt=0)
    wheel_install_timeout_sec: float = Field(180.0, gt=0)

    @field_validator("tags", "workflow_callable_allow", "workflow_env_allow", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("runner_user")
    @classmethod
    def _find_runner_user(cls, value: str | None) -> str | None:
        if value is not None:
            RunnerAccount.named(value)
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        self.tags = list(dict.fromkeys(self.tags)) or [self.default_tag]
        if self.run_heartbeat_interval_sec >= self.run_lost_after_sec:
            raise ValueError(
                f"the setting PYOCO_RUN_HEARTBEAT_INTERVAL_SEC={self.run_heartbeat_interval_sec:g} must be smaller "
                f"than PYOCO_RUN_LOST_AFTER_SEC={self.run_lost_after_sec:g}, or living runs are taken for lost"
            )
        return self

    @property
    def syncs_wheels(self) -> bool:
        return self.wheel_sync_enabled == "1"

    @cached_property
    def run_memory_limit_bytes(self) -> int:
        """0: no limit."""
        given = self.run_memory_max_bytes
        return default_limit_bytes(self.slots) if given is None else given

    @cached_property
    def runner_start(self) -> RunnerStart:
        account = None if self.runner_user is None else RunnerAccount.named(self.runner_user)
        return RunnerStart(self.workflow_env_allow, account)

    def find_flows_dir(self) -> Path | None:
        """The folder to load flows from when no resolver is given."""
        if self.flows_dir is not None:
            return self.flows_dir.absolute()
        usual = Path(_DEFAULT_FLOWS_DIR).absolute()
        return usual if usual.is_dir() else None

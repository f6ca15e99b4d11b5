"""The settings of the embedded stack."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from fleet_contracts.names import Tag, WireNames
from fleet_kit.files.disk import DiskLimits
from fleet_kit.nats.stream_limits import DlqLimits, EventsLimits
from fleet_kit.settings import FleetSettings, GatewaySecret

AuthMode = Literal["none", "api_key"]
DashboardLang = Literal["auto", "ja", "en"]


class LauncherSettings(FleetSettings, GatewaySecret, WireNames, DlqLimits, EventsLimits, DiskLimits):
    """The settings of `pyoco-server`; other variables are passed on to the parts (`environment.py`)."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    # Further host names of the gateway: comma-separated, without ports.
    allowed_hosts: Annotated[list[str], NoDecode] = []
    # The port on which a Prometheus of this machine scrapes the services; workers use the next ones. Unset: none.
    metrics_port: int | None = Field(None, ge=1, le=65000)
    data_dir: Path = Path(".fleet")
    start_timeout_sec: float = Field(60.0, gt=0)

    http_auth_mode: AuthMode = "none"
    http_api_key_header: str = "X-API-Key"
    dashboard_lang: DashboardLang = "auto"
    wheel_max_bytes: int = Field(536_870_912, ge=1)
    # Unset: the data dir, because the system's temporary folder may be in memory.
    wheel_upload_dir: Path | None = None
    runs_database_url: str | None = None

    # The NATS that the stack starts itself.
    nats_server_bin: str | None = None
    nats_host: str = Field("127.0.0.1", pattern=r"^[A-Za-z0-9.:_-]+$")
    nats_port: int | None = Field(None, ge=1, le=65535)
    # Whether every part has its own NATS user. Unset: `nkey` with the stack's own NATS, `off` with another.
    nats_auth: Literal["nkey", "off"] | None = None
    nats_sync_interval: str = "1s"

    workers: int | None = Field(None, ge=0, le=256)
    flow_resolver: str | None = None
    flows_dir: Path | None = None
    # The stack's workers reload their flows when a file changes.
    flows_reload: bool = True
    flow_env_file: Path | None = None
    runner_user: str | None = None
    worker_stop_grace_sec: float = Field(10.0, ge=0)
    # The tags that the stack's workers serve; comma-separated. Empty: the default tag.
    tags: Annotated[list[Tag], NoDecode] = []

    @field_validator("tags", "allowed_hosts", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @property
    def worker_tags(self) -> list[str]:
        return list(dict.fromkeys(self.tags)) or [self.default_tag]

    @field_validator("nats_sync_interval")
    @classmethod
    def _check_sync_interval(cls, value: str) -> str:
        if not re.fullmatch(r"always|\d+(\.\d+)?(ms|s|m|h)", value):
            raise ValueError("use `always` or a duration such as 500ms, 1s or 2m")
        return value

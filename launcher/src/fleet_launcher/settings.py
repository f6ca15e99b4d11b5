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


class LauncherSettings(FleetSettings, GatewaySecret, WireNames, DlqLimits, EventsLimits, DiskLimits):
    """Read by `pyoco-server`; what else the environment holds is passed on to the parts (`environment.py`)."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    # What else it is called: comma-separated names of hosts, without ports.
    allowed_hosts: Annotated[list[str], NoDecode] = []
    # Where a Prometheus on this machine may scrape the services; the workers have the ports after it. Unset: nowhere.
    metrics_port: int | None = Field(None, ge=1, le=65000)
    data_dir: Path = Path(".fleet")
    start_timeout_sec: float = Field(60.0, gt=0)

    http_auth_mode: Literal["none", "api_key"] = "none"
    http_api_key_header: str = "X-API-Key"
    dashboard_lang: Literal["auto", "ja", "en"] = "auto"
    wheel_max_bytes: int = Field(536_870_912, ge=1)
    # The data dir unless it is set: a system's temporary folder may be one in memory.
    wheel_upload_dir: Path | None = None
    runs_database_url: str | None = None

    # The NATS that the stack starts itself.
    nats_server_bin: str | None = None
    nats_host: str = Field("127.0.0.1", pattern=r"^[A-Za-z0-9.:_-]+$")
    nats_port: int | None = Field(None, ge=1, le=65535)
    # Whether every part is a NATS user of its own. Not set: with the stack's own NATS they are, with another not.
    nats_auth: Literal["nkey", "off"] | None = None
    nats_sync_interval: str = "1s"

    workers: int | None = Field(None, ge=0, le=256)
    flow_resolver: str | None = None
    flows_dir: Path | None = None
    runner_user: str | None = None
    worker_stop_grace_sec: float = Field(10.0, ge=0)
    # What the stack's workers serve; comma-separated, empty: the default tag.
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

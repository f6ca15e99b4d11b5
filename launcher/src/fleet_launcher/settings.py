"""The settings of the embedded stack."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from fleet_kit.settings import FleetSettings


class LauncherSettings(FleetSettings):
    """Read by `pyoco-server`; whatever else the environment holds is passed on to the parts as it is."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    data_dir: Path = Path(".fleet")
    start_timeout_sec: float = Field(60.0, gt=0)

    http_auth_mode: Literal["none", "api_key"] = "none"
    http_api_key_header: str = "X-API-Key"
    dashboard_lang: Literal["auto", "ja", "en"] = "auto"
    wheel_max_bytes: int = Field(536_870_912, ge=1)
    runs_database_url: str | None = None

    # The NATS that the stack starts itself.
    nats_server_bin: str | None = None
    nats_port: int | None = Field(None, ge=1, le=65535)
    nats_sync_interval: str = Field("1s", pattern=r"^(always|(\d+(\.\d+)?(ms|s|m|h))+)$")

    workers: int | None = Field(None, ge=0, le=256)
    flow_resolver: str | None = None
    flows_dir: Path | None = None
    worker_stop_grace_sec: float = Field(10.0, ge=0)

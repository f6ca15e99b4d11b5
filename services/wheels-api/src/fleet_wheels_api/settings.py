"""The settings of wheels-api."""

from pathlib import Path

from pydantic import Field

from fleet_contracts.names import WireNames
from fleet_kit.settings import HttpSettings


class Settings(HttpSettings, WireNames):
    wheel_max_bytes: int = Field(536_870_912, ge=1)
    wheel_max_unpacked_bytes: int = Field(4_294_967_296, ge=1)
    wheel_history_ttl_sec: float = Field(7_776_000.0, ge=1)
    # The folder of incoming uploads. Unset: the system's temporary folder.
    wheel_upload_dir: Path | None = None
    wheel_sweep_interval_sec: float = Field(30.0, gt=0)
    # The age at which bytes in the store that belong to no wheel are removed: their upload has failed.
    wheel_orphan_sec: float = Field(3600.0, gt=0)

"""The settings of wheels-api."""

from pydantic import Field

from fleet_contracts.names import WireNames
from fleet_kit.settings import HttpSettings


class Settings(HttpSettings, WireNames):
    wheel_max_bytes: int = Field(536_870_912, ge=1)
    wheel_history_ttl_sec: float = Field(7_776_000.0, ge=1)

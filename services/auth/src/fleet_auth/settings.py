"""The settings of auth."""

from typing import Literal

from pydantic import Field

from fleet_contracts.names import WireNames
from fleet_kit.settings import HttpSettings

from .pepper import Pepper


class Settings(HttpSettings, WireNames, Pepper):
    http_auth_mode: Literal["none", "api_key"] = "none"
    http_api_key_header: str = Field("X-API-Key", pattern=r"^[A-Za-z][A-Za-z0-9-]*$", max_length=64)
    # How long known keys are accepted while NATS is unavailable.
    auth_stale_sec: float = Field(60.0, ge=1)

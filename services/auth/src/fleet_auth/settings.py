"""The settings of auth."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from fleet_contracts.names import WireNames
from fleet_kit.files.secrets import secret_of
from fleet_kit.settings import FleetSettings, HttpSettings


class KeySettings(FleetSettings, WireNames):
    """Where the keys are and how they are hashed: for auth and for the admin command."""

    # Mixed into the hash of every key: keys cannot be tried against the bucket alone.
    auth_pepper: SecretStr | None = None
    # The same, read from a file that other users cannot access.
    auth_pepper_file: Path | None = None

    @model_validator(mode="after")
    def _read_pepper(self) -> Self:
        self.auth_pepper = secret_of(self.auth_pepper, self.auth_pepper_file, setting="PYOCO_AUTH_PEPPER")
        return self


class Settings(HttpSettings, KeySettings):
    http_auth_mode: Literal["none", "api_key"] = "none"
    http_api_key_header: str = Field("X-API-Key", pattern=r"^[A-Za-z][A-Za-z0-9-]*$", max_length=64)
    # How long known keys are accepted while NATS is unavailable.
    auth_stale_sec: float = Field(60.0, ge=1)

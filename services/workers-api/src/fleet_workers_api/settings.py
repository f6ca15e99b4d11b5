"""The settings of workers-api."""

from typing import Self

from pydantic import Field, model_validator

from fleet_contracts.names import WireNames
from fleet_kit.settings import HttpSettings


class Settings(HttpSettings, WireNames):
    worker_disconnect_timeout_sec: float = Field(20.0, gt=0)
    # How long the record of a stopped or silent worker is kept; 0: for ever.
    worker_record_ttl_sec: float = Field(7 * 86400.0, ge=0)
    # A v0 setting: read and checked, but the registry has no ttl; silence is judged by the timeout above.
    workers_kv_ttl_sec: float = Field(15.0, gt=0)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if 0 < self.worker_record_ttl_sec <= self.worker_disconnect_timeout_sec:
            raise ValueError(
                f"the setting PYOCO_WORKER_RECORD_TTL_SEC={self.worker_record_ttl_sec:g} must be greater than "
                f"PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC={self.worker_disconnect_timeout_sec:g}, or 0 to keep records"
            )
        return self

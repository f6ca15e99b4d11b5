"""The settings of workers-api."""

from pydantic import Field

from fleet_contracts.names import WireNames
from fleet_kit.settings import HttpSettings


class Settings(HttpSettings, WireNames):
    worker_disconnect_timeout_sec: float = Field(20.0, gt=0)
    # A v0 setting: read and checked, but the registry has no ttl; silence is judged by the timeout above.
    workers_kv_ttl_sec: float = Field(15.0, gt=0)

"""Typed settings from the environment and .env, read once, refused with a sentence that says what to fix."""

import os
from typing import Any, Literal, Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class SettingsError(Exception):
    """A setting has a value that is not allowed."""


class FleetSettings(BaseSettings):
    """The settings of every process. A field `nats_url` is the environment variable PYOCO_NATS_URL."""

    model_config = SettingsConfigDict(
        env_prefix="PYOCO_", env_ignore_empty=True, extra="ignore", env_file_encoding="utf-8"
    )

    nats_url: str = Field("nats://127.0.0.1:4222", pattern=r"^(nats|tls|ws|wss)://")
    nats_connect_timeout_sec: float = Field(2.0, gt=0)
    nats_request_timeout_sec: float = Field(5.0, gt=0)

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    log_format: Literal["json", "text"] = "json"
    log_utc: bool = True
    log_include_traceback: bool = True

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the settings; `overrides` (command line options) win over the environment, that wins over .env."""
        given = {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls(_env_file=_env_file(), **given)
        except ValidationError as error:
            raise SettingsError("; ".join(_sentences(error))) from error


class HttpSettings(FleetSettings):
    """Where an HTTP service listens: a unix socket in the embedded stack, a port in a container."""

    uds: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)


def _env_file() -> str | None:
    flag = os.environ.get("PYOCO_LOAD_DOTENV", "1").strip().lower()
    if flag in ("0", "false", "no", "off"):
        return None
    if flag not in ("", "1", "true", "yes", "on"):
        raise SettingsError(f"PYOCO_LOAD_DOTENV={flag!r} is not allowed: use 0 or 1")
    return os.environ.get("PYOCO_ENV_FILE") or ".env"


def _sentences(error: ValidationError) -> list[str]:
    sentences = []
    for problem in error.errors(include_url=False):
        field = str(problem["loc"][0]) if problem["loc"] else ""
        reason = problem["msg"].removeprefix("Value error, ")
        reason = reason[:1].lower() + reason[1:]
        if field:
            sentences.append(f"PYOCO_{field.upper()}={problem['input']!r} is not allowed: {reason}")
        else:
            sentences.append(reason)
    return sentences

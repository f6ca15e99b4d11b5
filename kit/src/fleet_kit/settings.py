"""Typed settings from the environment and .env, read once, refused with a sentence that says what to fix."""

import ipaddress
import os
import re
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from .secret_files import read_secret

# It travels in a header and stands in nginx's configuration.
_GATEWAY_SECRET = re.compile(r"[A-Za-z0-9_-]{16,256}")


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
            sentences = "; ".join(cls._sentences(error))
        # Not as its cause: what the library says holds the values, secrets among them.
        raise SettingsError(sentences)

    @classmethod
    def _sentences(cls, error: ValidationError) -> list[str]:
        sentences = []
        for problem in error.errors(include_url=False):
            field = str(problem["loc"][0]) if problem["loc"] else ""
            reason = problem["msg"].removeprefix("Value error, ")
            reason = reason[:1].lower() + reason[1:] if not reason.startswith("PYOCO_") else reason
            if field:
                shown = "" if cls._is_secret(field) else f"={problem['input']!r}"
                sentences.append(f"PYOCO_{field.upper()}{shown} is not allowed: {reason}")
            else:
                sentences.append(reason)
        return sentences

    @classmethod
    def _is_secret(cls, field: str) -> bool:
        kind = cls.model_fields[field].annotation if field in cls.model_fields else None
        return SecretStr in (kind, *get_args(kind))


class GatewaySecret(BaseModel):
    """What the gateway and the services know and nobody else does; settings classes inherit it."""

    gateway_secret: SecretStr | None = None
    # The same in a file that others may not read.
    gateway_secret_file: Path | None = None

    @model_validator(mode="after")
    def _read_gateway_secret(self) -> Self:
        if self.gateway_secret_file is not None:
            if self.gateway_secret is not None:
                raise ValueError("PYOCO_GATEWAY_SECRET and PYOCO_GATEWAY_SECRET_FILE are both set; unset one of them")
            self.gateway_secret = SecretStr(
                read_secret(self.gateway_secret_file, setting="PYOCO_GATEWAY_SECRET_FILE")
            )
        if self.gateway_secret is not None and not _GATEWAY_SECRET.fullmatch(self.gateway_secret.get_secret_value()):
            raise ValueError("the gateway secret must have 16 to 256 letters, digits, - and _")
        return self


class HttpSettings(FleetSettings, GatewaySecret):
    """Where an HTTP service listens: a unix socket in the embedded stack, a port in a container."""

    uds: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)

    @model_validator(mode="after")
    def _need_gateway_secret(self) -> Self:
        if self.gateway_secret is None and self.uds is None and not _is_loopback(self.host):
            raise ValueError(
                f"the service would listen on {self.host} and believe whoever reaches it; set PYOCO_GATEWAY_SECRET "
                "or PYOCO_GATEWAY_SECRET_FILE to the secret of the gateway, or PYOCO_HOST to 127.0.0.1"
            )
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _env_file() -> str | None:
    flag = os.environ.get("PYOCO_LOAD_DOTENV", "1").strip().lower()
    if flag in ("0", "false", "no", "off"):
        return None
    if flag not in ("", "1", "true", "yes", "on"):
        raise SettingsError(f"PYOCO_LOAD_DOTENV={flag!r} is not allowed: use 0 or 1")
    return os.environ.get("PYOCO_ENV_FILE") or ".env"

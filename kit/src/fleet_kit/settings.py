"""Typed settings from the environment and .env, read once; the error for an invalid one says how to fix it."""

import ipaddress
import os
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from pydantic import BaseModel, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from .files.secrets import secret_of

if TYPE_CHECKING:
    from .files.nkeys import Nkey

# Characters that are safe in an HTTP header and in nginx's configuration.
_GATEWAY_SECRET = re.compile(r"[A-Za-z0-9_-]{16,256}")


class SettingsError(Exception):
    """A setting has a value that is not allowed."""

    def __init__(self, sentence: str, *names: str) -> None:
        super().__init__(sentence)
        self.names = names


class EnvSettings(BaseSettings):
    """The base of all settings classes. A field `nats_url` is the environment variable PYOCO_NATS_URL."""

    model_config = SettingsConfigDict(
        env_prefix="PYOCO_", env_ignore_empty=True, extra="ignore", env_file_encoding="utf-8"
    )

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the settings. Precedence: `overrides` (command line options), the environment, .env."""
        given = {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls(_env_file=_env_file(), **given)
        except ValidationError as error:
            sentences = "; ".join(cls._sentences(error))
            names = [f"PYOCO_{str(problem['loc'][0]).upper()}" for problem in error.errors() if problem["loc"]]
        # Raised without its cause: pydantic's text quotes the values, secrets among them.
        raise SettingsError(sentences, *names)

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


class FleetSettings(EnvSettings):
    """The settings of every process."""

    nats_url: str = Field("nats://127.0.0.1:4222", pattern=r"^(nats|tls|ws|wss)://")
    nats_connect_timeout_sec: float = Field(2.0, gt=0)
    nats_request_timeout_sec: float = Field(5.0, gt=0)
    # The number of servers of a NATS cluster that store each stream and bucket.
    nats_replicas: int = Field(1, ge=1, le=5)
    # The seed of this process's NATS user.
    nats_nkey_file: Path | None = None
    # For TLS to NATS: a private CA, a client certificate, a server name other than that of the URL.
    nats_tls_ca_file: Path | None = None
    nats_tls_cert_file: Path | None = None
    nats_tls_key_file: Path | None = None
    nats_tls_hostname: str | None = None

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    log_format: Literal["json", "text"] = "json"
    log_utc: bool = True
    log_include_traceback: bool = True

    # The commit of the build, exported in pyoco_build_info.
    revision: str = "unknown"

    _nats_nkey: "Nkey | None" = None

    @model_validator(mode="after")
    def _read_nats_credentials(self) -> Self:
        if self.nats_nkey_file is not None:
            # Imported when needed: most commands of the launcher are quicker without it.
            from .files.nkeys import read_nkey

            self._nats_nkey = read_nkey(self.nats_nkey_file, setting="PYOCO_NATS_NKEY_FILE")
        if (self.nats_tls_cert_file is None) != (self.nats_tls_key_file is None):
            raise ValueError("PYOCO_NATS_TLS_CERT_FILE and PYOCO_NATS_TLS_KEY_FILE belong together; set both or none")
        self.nats_tls_context()
        return self

    @property
    def nats_nkey(self) -> "Nkey | None":
        return self._nats_nkey

    def nats_tls_context(self) -> ssl.SSLContext | None:
        """The TLS context; None without TLS files: then TLS, if used, trusts the system's certificates."""
        if self.nats_tls_ca_file is None and self.nats_tls_cert_file is None:
            return None
        name = "PYOCO_NATS_TLS_CA_FILE"
        try:
            context = ssl.create_default_context(cafile=self.nats_tls_ca_file)
            if self.nats_tls_cert_file is not None:
                name = "PYOCO_NATS_TLS_CERT_FILE and PYOCO_NATS_TLS_KEY_FILE"
                # An empty password: an encrypted key is refused, where OpenSSL would prompt for one on the terminal.
                context.load_cert_chain(self.nats_tls_cert_file, self.nats_tls_key_file, password="")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{name} cannot be used ({error.strerror if isinstance(error, OSError) else error})"
            ) from error
        return context

    @classmethod
    def only_of_logging(cls) -> "FleetSettings":
        """The logging settings alone, for a process that must log that its settings are invalid."""
        is_text = os.environ.get("PYOCO_LOG_FORMAT") == "text"
        return FleetSettings.model_construct(log_format="text" if is_text else "json")


class GatewaySecret(BaseModel):
    """The secret that the gateway and the services share; settings classes inherit it."""

    gateway_secret: SecretStr | None = None
    # The same, read from a file that other users cannot access.
    gateway_secret_file: Path | None = None

    @model_validator(mode="after")
    def _read_gateway_secret(self) -> Self:
        self.gateway_secret = secret_of(self.gateway_secret, self.gateway_secret_file, setting="PYOCO_GATEWAY_SECRET")
        if self.gateway_secret is not None and not _GATEWAY_SECRET.fullmatch(self.gateway_secret.get_secret_value()):
            raise ValueError("the gateway secret must have 16 to 256 letters, digits, - and _")
        return self


class HttpSettings(FleetSettings, GatewaySecret):
    """Where an HTTP service listens: a unix socket in the embedded stack, a port in a container."""

    uds: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    # How long a starting service waits for readiness before it listens. 0: it listens at once, and /ready names what
    # is missing.
    ready_wait_sec: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _need_gateway_secret(self) -> Self:
        if self.gateway_secret is None and self.uds is None and not is_loopback(self.host):
            raise ValueError(
                f"the service would listen on {self.host} and believe every client; set PYOCO_GATEWAY_SECRET "
                "or PYOCO_GATEWAY_SECRET_FILE to the secret of the gateway, or PYOCO_HOST to 127.0.0.1"
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _env_file() -> str | None:
    flag = os.environ.get("PYOCO_LOAD_DOTENV", "1").strip().lower()
    if flag in ("0", "false", "no", "off"):
        return None
    if flag not in ("", "1", "true", "yes", "on"):
        raise SettingsError(f"PYOCO_LOAD_DOTENV={flag!r} is not allowed: use 0 or 1", "PYOCO_LOAD_DOTENV")
    return os.environ.get("PYOCO_ENV_FILE") or ".env"

"""The configuration of the gateway: listen address, upstreams, limits."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, StringConstraints

STATIC_DIR = Path(__file__).parent / "static"

# A wheel travels as multipart/form-data: boundaries, part headers and the tags come on top of the file itself.
MULTIPART_SLACK_BYTES = 1024 * 1024

# sockaddr_un holds 108 bytes; a few are left for the platforms that hold less.
_MAX_SOCKET_PATH = 100

# Headers that the gateway sends itself, or that are about the connection.
_TAKEN_HEADERS = {
    *("host", "connection", "keep-alive", "upgrade", "te", "trailer", "expect", "transfer-encoding"),
    *("content-length", "content-type", "x-request-id", "x-real-ip", "idempotency-key", "last-event-id"),
    *("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
}

# Characters with a meaning in nginx's quoted strings and include patterns.
_UNSAFE_IN_PATH = re.compile(r'["\'$\\;{}*?\[\]\x00-\x1f]')
_HOST = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9._-]{0,250}[a-z0-9])?|\[[0-9a-f:]{2,45}\]")
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# Wildcard addresses, which no client uses as a Host.
_EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - not bound here
_HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}")


def _check_path(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError(f"{path} must be an absolute path")
    if found := _UNSAFE_IN_PATH.search(str(path)):
        raise ValueError(f"{path} contains {found.group()!r}, which nginx cannot take in a path; use another folder")
    return path


def _check_upstream(address: str) -> str:
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        _check_path(Path(path))
        if len(path.encode()) > _MAX_SOCKET_PATH:
            raise ValueError(f"{path} is longer than {_MAX_SOCKET_PATH} bytes; use a shorter data folder")
    elif not _HOST_AND_PORT.fullmatch(address):
        raise ValueError(f"{address!r} is neither unix:/path/to.sock nor host:port")
    return address


def _check_allowed_host(host: str) -> str:
    if not _HOST.fullmatch(name := host.lower()):
        raise ValueError(
            f"PYOCO_ALLOWED_HOSTS names {host!r}; name hosts without scheme and port, such as fleet.example.com, "
            "*.example.com, 192.0.2.7 or [2001:db8::7]"
        )
    return name


def _check_secret(secret: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[A-Za-z0-9_-]*", secret.get_secret_value()):
        raise ValueError("the gateway secret may have letters, digits, - and _ only")
    return secret


def _check_key_header(name: str) -> str:
    if name.lower() in _TAKEN_HEADERS or name.lower().startswith("x-pyoco-"):
        raise ValueError(f"{name} has another meaning; choose another header for the API key")
    return name


Upstream = Annotated[str, AfterValidator(_check_upstream)]
AllowedHost = Annotated[str, AfterValidator(_check_allowed_host)]
SafePath = Annotated[Path, AfterValidator(_check_path)]
HeaderName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9-]*$", max_length=64), AfterValidator(_check_key_header)
]


class GatewayConfig(BaseModel):
    """Everything that differs between two gateways."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", pattern=r"^[A-Za-z0-9.:_-]+$")
    port: int = Field(8000, ge=1, le=65535)

    # Accepted Host names besides its address and the loopback names; all others are refused.
    allowed_hosts: tuple[AllowedHost, ...] = ()

    # The loopback port on which a Prometheus of this machine may scrape the services; None: no port.
    metrics_port: int | None = Field(None, ge=1, le=65535)

    runs_upstream: Upstream
    workers_upstream: Upstream
    wheels_upstream: Upstream
    auth_upstream: Upstream

    # Sockets, caches and half-received bodies live here: a folder of this gateway's own.
    temp_dir: SafePath
    static_dir: SafePath = STATIC_DIR
    access_log: SafePath = Path("/dev/stdout")

    dashboard_lang: Literal["auto", "ja", "en"] = "auto"
    api_key_header: HeaderName = "X-API-Key"
    # Sent to the services with every request; empty: none.
    secret: Annotated[SecretStr, AfterValidator(_check_secret)] = SecretStr("")

    body_limit_bytes: int = Field(1024 * 1024, ge=1)
    batch_body_limit_bytes: int = Field(16 * 1024 * 1024, ge=1)
    wheel_max_bytes: int = Field(512 * 1024 * 1024, ge=1)

    worker_processes: int = Field(2, ge=1)

    def variables(self) -> dict[str, str]:
        """The values of the http-level template, by the names that containers use as well."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        own = () if self.host in _EVERY_ADDRESS else (host.lower(),)
        known = dict.fromkeys((*_LOOPBACK_NAMES, *own, *self.allowed_hosts))
        return {
            "PYOCO_GATEWAY_LISTEN": f"{host}:{self.port}",
            "PYOCO_GATEWAY_KNOWN_HOSTS": " ".join(f"{name} 1;" for name in known),
            "PYOCO_GATEWAY_RUNS_UPSTREAM": self.runs_upstream,
            "PYOCO_GATEWAY_WORKERS_UPSTREAM": self.workers_upstream,
            "PYOCO_GATEWAY_WHEELS_UPSTREAM": self.wheels_upstream,
            "PYOCO_GATEWAY_AUTH_UPSTREAM": self.auth_upstream,
            "PYOCO_GATEWAY_STATIC_DIR": str(self.static_dir),
            "PYOCO_GATEWAY_ACCESS_LOG": str(self.access_log),
            "PYOCO_GATEWAY_BODY_LIMIT": str(self.body_limit_bytes),
            "PYOCO_GATEWAY_BATCH_BODY_LIMIT": str(self.batch_body_limit_bytes),
            "PYOCO_GATEWAY_WHEEL_BODY_LIMIT": str(self.wheel_max_bytes + MULTIPART_SLACK_BYTES),
            "PYOCO_GATEWAY_SECRET": self.secret.get_secret_value(),
            "PYOCO_HTTP_API_KEY_HEADER": self.api_key_header,
            "PYOCO_GATEWAY_API_KEY_VARIABLE": header_variable(self.api_key_header),
            "PYOCO_DASHBOARD_LANG": resolve_lang(self.dashboard_lang, os.environ),
        }


def header_variable(header: str) -> str:
    """The name of nginx's variable for a request header."""
    return "http_" + header.lower().replace("-", "_")


def resolve_lang(lang: str, environ: Mapping[str, str]) -> str:
    """`auto` is the language of the server's locale, decided as the C library decides it."""
    if lang != "auto":
        return lang
    locale = next((environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(name)), "")
    return "ja" if locale.lower().startswith("ja") else "en"

"""Which fleet is meant, and with which key: arguments, environment, profile, else this machine."""

import os
import tomllib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from .errors import FleetError

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_KEY_HEADER = "X-API-Key"
_KNOWN = {"server", "api_key", "api_key_header"}


class InvalidConfiguration(FleetError):
    """The configuration does not say which fleet is meant."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="INVALID_CONFIGURATION", err_id="ERR-PYOCO-0018")


@dataclass(frozen=True)
class Server:
    url: str = DEFAULT_URL
    api_key: str | None = field(default=None, repr=False)
    api_key_header: str = DEFAULT_KEY_HEADER
    # What the address had before its @, for a proxy before the fleet: no message shows it.
    login: str | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        url = self.url.rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise InvalidConfiguration(f"{self.url!r} is no address of a fleet; an address is like {DEFAULT_URL}")
        # Here, because the HTTP library would show the key in its message.
        key = self.api_key or ""
        if not (key.isascii() and key.isprintable() and key == key.strip()):
            raise InvalidConfiguration("the API key has characters that no key has; copy it again")
        scheme, _, rest = url.partition("://")
        place, *path = rest.split("/", 1)
        login, at, host = place.rpartition("@")
        object.__setattr__(self, "login", login if at else None)
        object.__setattr__(self, "url", "/".join([f"{scheme}://{host}", *path]))

    @property
    def address(self) -> str:
        """The URL with its login, for another client of the same fleet; not to be shown."""
        return self.url.replace("://", f"://{self.login}@", 1) if self.login else self.url

    @property
    def headers(self) -> dict[str, str]:
        key = {self.api_key_header: self.api_key} if self.api_key else {}
        login = self.login and b64encode(unquote(self.login).encode()).decode()
        return key | ({"Authorization": f"Basic {login}"} if login else {})


def server(
    url: str | None = None,
    *,
    api_key: str | None = None,
    api_key_header: str | None = None,
    profile: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Server:
    """Arguments come first, then PYOCO_SERVER and PYOCO_API_KEY, then the profile.

    The key of a profile is sent to the server of that profile only.
    """
    environ = os.environ if environ is None else environ
    wanted = profile or environ.get("PYOCO_PROFILE") or None
    chosen = _profile(_config_file(environ), wanted)
    address = url or environ.get("PYOCO_SERVER") or chosen.get("server") or DEFAULT_URL
    key = api_key or environ.get("PYOCO_API_KEY") or None
    header = api_key_header or environ.get("PYOCO_API_KEY_HEADER") or None
    if address.rstrip("/") == chosen.get("server", DEFAULT_URL).rstrip("/"):
        key = key or chosen.get("api_key")
        header = header or chosen.get("api_key_header")
    return Server(address, key, header or DEFAULT_KEY_HEADER)


def _config_file(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "pyoco" / "config.toml"


def _profile(file: Path, name: str | None) -> dict[str, str]:
    try:
        profiles = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        profiles = {}
    except (OSError, ValueError) as error:
        raise InvalidConfiguration(f"{file} cannot be read: {error}") from error
    chosen = profiles.get(name or "default")
    if chosen is None:
        if name is None:
            return {}
        known = ", ".join(sorted(profiles)) or "none"
        raise InvalidConfiguration(f"there is no profile {name!r} in {file}; known profiles: {known}")
    place = f"[{name or 'default'}] of {file}"
    if not isinstance(chosen, dict) or not all(isinstance(value, str) for value in chosen.values()):
        raise InvalidConfiguration(f"{place} must have texts only, for example: server = {DEFAULT_URL!r}")
    if unknown := set(chosen) - _KNOWN:
        raise InvalidConfiguration(
            f"{place} has an unknown key {sorted(unknown)[0]!r}; known: {', '.join(sorted(_KNOWN))}"
        )
    return chosen
